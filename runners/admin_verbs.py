"""What operators may do to runners and enrolment tokens: one service function each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from django import forms

from admission.admin.tenant_verbs import PauseForm
from admission.models import Tenant
from controlplane.admin_base.verbs import Order, Outcome, Preview, ReasonForm, Verb
from controlplane.core.errors import InvalidInput
from runners.models import Runner
from runners.services import enrolment, fleet
from runners.services.rotation import rotate_token


class EnrolmentForm(ReasonForm):
    """For how many machines, how long, and whose work they do."""

    name = forms.CharField(max_length=100, help_text="What the machines are, e.g. “lab racks”.")
    uses = forms.IntegerField(
        min_value=1, max_value=enrolment.MAX_SLOTS, initial=1, help_text="Machines that may enrol."
    )
    hours = forms.IntegerField(min_value=1, max_value=720, initial=1, help_text="Until the token expires.")
    tenant = forms.SlugField(required=False, help_text="Slug of the only tenant whose work they take. Empty: shared.")
    trust_labels = forms.CharField(
        required=False,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text="Labels that the server gives, one trust.name=value a line; a machine cannot give itself these.",
    )
    one_job = forms.BooleanField(required=False, label="One run each", help_text="Each takes one run, then ends.")
    field_order = ("name", "uses", "hours", "tenant", "trust_labels", "one_job", "reason")

    def clean_trust_labels(self) -> dict[str, str]:
        """Lines of name=value; which names are allowed the service says."""
        try:
            return enrolment.parse_labels(self.cleaned_data["trust_labels"].splitlines())
        except InvalidInput as error:
            raise forms.ValidationError(error.detail) from error

    def clean_tenant(self) -> Tenant | None:
        """By its slug: a list of ten thousand would be no help."""
        slug = self.cleaned_data["tenant"]
        if not slug:
            return None
        tenant = Tenant.objects.filter(slug=slug).first()
        if tenant is None:
            raise forms.ValidationError(f"There is no tenant {slug!r}.")
        return tenant


class RotateForm(ReasonForm):
    """Why, and how long the old one opens."""

    hours = forms.IntegerField(
        min_value=0,
        max_value=168,
        initial=24,
        help_text="How long the old token opens at most, unless the new is used.",
    )
    field_order = ("hours", "reason")


def _issue(order: Order) -> Outcome:
    values = order.values
    _, secret = enrolment.issue_enrolment_token(
        actor=order.actor,
        name=values["name"],
        uses=values["uses"],
        lifetime=timedelta(hours=values["hours"]),
        tenant=values["tenant"],
        trust_labels=values["trust_labels"],
        one_job=values["one_job"],
        reason=order.reason,
    )
    return Outcome(f"New enrolment token: {values['name']}", 1, secret=secret)


def _each(verb: Callable[..., bool], what: str) -> Callable[[Order], Outcome]:
    def perform(order: Order) -> Outcome:
        done = sum(order.each(lambda runner: verb(runner.pk, actor=order.actor, reason=order.reason)))
        return _counted(f"runner{'' if done == 1 else 's'} {what}", done, len(order.objects))

    return perform


def _pause(order: Order) -> Outcome:
    at = order.values["resume_at"]
    return _each(partial(fleet.pause_runner, resume_at=at), "paused")(order)


def _rotate(order: Order) -> Outcome:
    runner: Runner = order.objects[0]
    rotated = rotate_token(
        runner.pk, actor=order.actor, reason=order.reason, overlap_seconds=3600.0 * order.values["hours"]
    )
    said = f"New token of runner {runner.name}; the old one opens until {rotated.old_until:%Y-%m-%d %H:%M} UTC"
    return Outcome(f"{said}, or until this one is used", 1, secret=rotated.token)


def _bring_back(order: Order) -> Outcome:
    runner: Runner = order.objects[0]
    _, secret = enrolment.issue_enrolment_token(
        actor=order.actor, name=f"back: {runner.name}"[:100], runner=runner, reason=order.reason
    )
    return Outcome(f"Enrolment token, for an hour, that brings back runner {runner.name}", 1, secret=secret)


def _revoke(order: Order) -> Outcome:
    taken = order.each(lambda runner: fleet.revoke_runner(runner.pk, actor=order.actor, reason=order.reason))
    done = [count for count in taken if count is not None]
    return _counted(f"revoked, {sum(done)} runs taken from them", len(done), len(taken))


def _revoke_tokens(order: Order) -> Outcome:
    done = sum(
        order.each(lambda token: enrolment.revoke_enrolment_token(token, actor=order.actor, reason=order.reason))
    )
    return _counted("revoked; runners that enrolled with them stay", done, len(order.objects))


def _counted(what: str, done: int, asked: int) -> Outcome:
    note = f" {asked - done} left as they were." if asked > done else ""
    return Outcome(f"{done} {what}.{note}", done)


def _preview(runners: Sequence[Any], _: Mapping[str, Any]) -> Preview:
    return Preview([f"{r.name}: {r.holding} of {r.slots} slots in use." for r in runners])


def _active(runner: Runner) -> bool:
    return runner.revoked_at is None


PAUSE = Verb(
    name="pause",
    label="Pause",
    permission="runners.pause_runner",
    perform=_pause,
    explain="It is given nothing more until it is resumed; what it runs goes on.",
    form=PauseForm,
    preview=_preview,
    applies=lambda runner: _active(runner) and runner.paused_at is None,
    icon="pause_circle",
)
DRAIN = Verb(
    name="drain",
    label="Drain",
    permission="runners.pause_runner",
    perform=_each(fleet.drain_runner, "draining"),
    explain="It is given nothing more, finishes what it has, and ends.",
    preview=_preview,
    applies=lambda runner: _active(runner) and runner.draining_at is None,
    icon="water_drop",
)
RESUME = Verb(
    name="resume",
    label="Resume",
    permission="runners.pause_runner",
    perform=_each(fleet.resume_runner, "taking work again"),
    explain="It is given work again, after a pause or a drain.",
    applies=lambda runner: _active(runner) and bool(runner.paused_at or runner.draining_at),
    icon="play_circle",
)
REVOKE = Verb(
    name="revoke",
    label="Revoke",
    permission="runners.revoke_runner",
    perform=_revoke,
    explain="Its token is refused from the next call on, and its runs are taken from it. To come back, the machine "
    "must enrol anew.",
    preview=_preview,
    applies=_active,
    danger=True,
    icon="block",
)
ROTATE = Verb(
    name="rotate",
    label="Rotate token",
    permission="runners.rotate_runner",
    perform=_rotate,
    explain="It gets a new token, shown on the next page, once. The one it has opens until the new one was used, and "
    "no longer than you say. On the machine itself, wharfinger runner rotate does all of this.",
    form=RotateForm,
    applies=_active,
    many=False,
    icon="autorenew",
)
BRING_BACK = Verb(
    name="bring-back",
    label="Enrol again",
    permission="runners.enrol_runner",
    perform=_bring_back,
    explain="An enrolment token with which its machine, or one that replaces it, becomes this same runner again. Once "
    "it is used, the token it had is dead and its runs are taken from it.",
    preview=_preview,
    many=False,
    icon="restore",
)
ISSUE = Verb(
    name="issue",
    label="Issue enrolment token",
    permission="runners.enrol_runner",
    perform=_issue,
    explain="Whoever has it may enrol machines as runners. The secret is shown on the next page, once.",
    form=EnrolmentForm,
    on_list=True,
    icon="vpn_key",
)
REVOKE_TOKEN = Verb(
    name="revoke",
    label="Revoke",
    permission="runners.enrol_runner",
    perform=_revoke_tokens,
    explain="No further machine enrols with it. Runners that did keep their own tokens.",
    applies=lambda token: getattr(token, "usable", False),
    danger=True,
    icon="block",
)
