"""Permits: who holds which right, how old it is, and when it lapses."""

# ruff: noqa: D102 - a column says what it is by its description

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from admission.admin.counters import scope_badge
from admission.models import Permit
from admission.services.force_release import force_release, holding_runs
from admission.states import Scope
from controlplane.admin_base import AutocompleteFilter, ReadOnlyAdmin, render
from controlplane.admin_base.clock import SecondsSince, SecondsToLapse
from controlplane.admin_base.drivers import driver_signs
from controlplane.admin_base.verbs import Order, Outcome, Preview, ReasonForm, Verb

WORD = "release"


class ForceReleaseForm(ReasonForm):
    """Taking work away is typed, not clicked by accident."""

    word = forms.CharField(label=f"Type “{WORD}” to confirm", widget=forms.TextInput(attrs={"autocomplete": "off"}))

    def clean_word(self) -> str:
        """The exact word."""
        if self.cleaned_data["word"].strip().lower() != WORD:
            raise forms.ValidationError(f"Type {WORD}.")
        return WORD


def _preview_release(objects: Sequence[Permit], _: Mapping[str, Any]) -> Preview:
    """Whom it takes the right from, and whether they still live."""
    runs = holding_runs(objects)
    outside = [p for p in objects if p.run_id is None]
    lines = []
    if runs:
        lines.append(
            f"{_count(len(runs), 'run')} taken from the driver and queued again, or ended; the epoch is raised."
        )
    if outside:
        lines.append(
            f"{_count(len(outside), 'outside permit')} released; whoever holds it is told at its next renewal."
        )
    signs = driver_signs({(r.driver_kind, r.driver_id) for r in runs if r.driver_id is not None})
    lines += [sign.sentence() for _, sign in sorted(signs.items())]
    alive = [s for s in signs.values() if s.health in ("live", "draining", "late")]
    if alive:
        lines.append("A living driver stops the work when it hears of this: until then it may run twice.")
    return Preview(lines, warning=bool(alive))


def _force_release(order: Order) -> Outcome:
    forced = force_release(order.objects, actor=order.actor, reason=order.reason)
    taken, released = len(forced.taken), len(forced.released)
    note = f" {forced.gone} had changed hands or ended meanwhile." if forced.gone else ""
    return Outcome(
        f"Took over {_count(taken, 'run')}, released {_count(released, 'outside permit')}.{note}", taken + released
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


FORCE_RELEASE = Verb(
    name="force-release",
    label="Force release",
    permission="admission.force_release_permit",
    perform=_force_release,
    explain="A takeover, not a deletion: a run's permits come free in the same transaction that takes the run from "
    "its driver, so nothing is counted twice.",
    form=ForceReleaseForm,
    preview=_preview_release,
    danger=True,
    icon="lock_open",
)


@admin.register(Permit)
class PermitAdmin(ReadOnlyAdmin):
    """Leases on the limits. Never added or deleted here."""

    verbs = (FORCE_RELEASE,)
    list_display = ("held_by", "owner", "limit", "weight", "driver", "acquired", "held_for", "lapses")
    list_display_links = ("acquired",)
    list_filter = ("scope", ("tenant", AutocompleteFilter))
    list_select_related = ("tenant",)
    search_fields = ("=holder", "key__startswith", "driver_name__startswith")
    search_help_text = "Holder (run.attempt or ext:…), or the beginning of a key or driver"
    ordering = ("renewed_at", "id")  # what lapses soonest comes first; index: permit_renewed
    fields = (
        ("limit", "weight"),
        ("owner", "scope"),
        ("held_by", "driver_name"),
        ("acquired", "renewed_at"),
        ("lapses", "lease"),
    )
    empty_list_hint = (
        "Nothing is held: no run of a tenant with a quota is in flight, and no other system has claimed a slot."
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Permit]:
        """With age and time left by the database's clock."""
        queryset: QuerySet[Permit] = super().get_queryset(request)
        return queryset.annotate(
            held_seconds=SecondsSince("acquired_at"), left_seconds=SecondsToLapse("renewed_at", "lapse_seconds")
        )

    @admin.display(description="limit", ordering="key")
    def limit(self, permit: Permit) -> SafeString:
        """A tenant's own limit needs no second name; others say which."""
        shown = scope_badge(permit.scope)
        if permit.scope == Scope.TENANT:
            return shown
        return format_html("{} {}", shown, permit.key.partition(":")[2] or permit.key)

    @admin.display(description="driver", ordering="driver_name")
    def driver(self, permit: Permit) -> SafeString | str:
        return permit.driver_name or render.EMPTY

    @admin.display(description="tenant", ordering="tenant__slug")
    def owner(self, permit: Permit) -> SafeString:
        return render.link("admin:admission_tenant_change", permit.tenant_id, permit.tenant.slug)

    @admin.display(description="holder", ordering="holder")
    def held_by(self, permit: Permit) -> SafeString:
        if permit.run_id is None:
            return render.code(permit.holder)
        return render.link(
            "admin:admission_run_change", permit.run_id, f"run {permit.run_id} · attempt {permit.attempt}"
        )

    @admin.display(description="acquired (UTC)", ordering="acquired_at")
    def acquired(self, permit: Permit) -> SafeString:
        return render.moment(permit.acquired_at)

    @admin.display(description="age", ordering="-acquired_at")
    def held_for(self, permit: Permit) -> SafeString:
        return render.age(getattr(permit, "held_seconds", None), permit.acquired_at)

    @admin.display(description="each renewal counts for")
    def lease(self, permit: Permit) -> str:
        return render.span(permit.lapse_seconds)

    @admin.display(description="lapses in", ordering="left_seconds")
    def lapses(self, permit: Permit) -> SafeString:
        left: float = getattr(permit, "left_seconds", 0.0)
        return render.countdown(left, warn_below=permit.lapse_seconds / 3)
