"""Limits of concurrency keys and harnesses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms

from admission.models import Counter
from admission.services import limits
from admission.services.quotas import parse_limit
from controlplane.admin_base.verbs import Order, Outcome, Preview, ReasonForm, Verb
from controlplane.core.errors import InvalidInput


class LimitForm(ReasonForm):
    """The new limit, parsed by the service's own rule."""

    limit = forms.CharField(
        label="New limit",
        max_length=10,
        widget=forms.NumberInput(attrs={"min": 0, "step": 1, "autofocus": True}),
        help_text="Weight in flight at most. 0 admits nothing. Lowering it kills nothing.",
    )
    field_order: Sequence[str] = ("limit", "reason")

    def clean_limit(self) -> int:
        """A whole number in range."""
        try:
            return parse_limit(self.cleaned_data["limit"], "limit")
        except InvalidInput as error:
            raise forms.ValidationError(str(error)) from error


class HarnessForm(LimitForm):
    """A harness that no run has named yet, too."""

    name = forms.CharField(max_length=limits.MAX_NAME, label="Harness", help_text="As runs name it.")
    field_order = ("name", "limit", "reason")


def _preview(counters: Sequence[Counter], _: Mapping[str, Any]) -> Preview:
    lines = []
    for counter in counters:
        now = "no limit" if counter.limit is None else f"limit {counter.limit}"
        lines.append(f"{counter}: {now} now, {counter.in_flight} in use.")
    return Preview(lines, {counter.pk: counter.limit for counter in counters})


def _set(order: Order) -> Outcome:
    limit = order.values["limit"]
    changes = order.each(lambda one: limits.change_limit(one, limit, actor=order.actor, reason=order.reason))
    if len(changes) == 1:
        return Outcome(f"{order.objects[0]}: {changes[0].sentence()}", 1)
    return Outcome(f"Limit {limit} set for {len(changes)} keys and harnesses; nothing is killed.", len(changes))


def _set_harness(order: Order) -> Outcome:
    name = order.values["name"]
    change = limits.set_harness_capacity(name, order.values["limit"], actor=order.actor, reason=order.reason)
    return Outcome(f"Harness {name}: {change.sentence()}", 1)


def _below_tenant(counter: Counter) -> bool:
    return counter.scope in limits.BELOW_TENANT


SET_LIMIT = Verb(
    name="set-limit",
    label="Set limit",
    permission="admission.set_quota",
    perform=_set,
    explain="Bounds what is in flight under this concurrency key or harness, over the whole fleet. A full one blocks "
    "only its own runs.",
    form=LimitForm,
    preview=_preview,
    applies=_below_tenant,
    icon="speed",
)
SET_HARNESS = Verb(
    name="set-harness-capacity",
    label="Set a harness's capacity",
    permission="admission.set_quota",
    perform=_set_harness,
    explain="Bounds how many runs of all tenants use this harness at once. A full one blocks only its own runs.",
    form=HarnessForm,
    many=False,
    on_list=True,
    icon="speed",
)

LIMIT_VERBS = (SET_LIMIT, SET_HARNESS)
