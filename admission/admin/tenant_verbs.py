"""Quota, pause, resume, delete, and a tenant's tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django import forms

from admission.admin.tokens import ISSUE_TOKEN
from admission.models import Tenant
from admission.services import quotas, tenants
from admission.services.deleting import delete_tenant
from controlplane.admin_base.verbs import Order, Outcome, Preview, ReasonForm, Verb
from controlplane.core.clock import check_to_come
from controlplane.core.errors import InvalidInput


class QuotaForm(ReasonForm):
    """The new limit, parsed by the service's own rule."""

    limit = forms.CharField(
        label="New quota",
        max_length=10,
        widget=forms.NumberInput(attrs={"min": 0, "step": 1, "autofocus": True}),
        help_text="Weight in flight at most, over the whole fleet. 0 admits nothing.",
    )
    field_order = ("limit", "reason")

    def clean_limit(self) -> int:
        """A whole number in range."""
        try:
            return quotas.parse_limit(self.cleaned_data["limit"])
        except InvalidInput as error:
            raise forms.ValidationError(str(error)) from error


class PauseForm(ReasonForm):
    """Why, and until when."""

    resume_at = forms.DateTimeField(
        label="Resume by itself at",
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}),
        help_text="In UTC. Empty: until somebody resumes it.",
    )

    def clean_resume_at(self) -> datetime | None:
        """In the future, by the database's clock."""
        at: datetime | None = self.cleaned_data["resume_at"]
        try:
            if at is not None:
                check_to_come(at, "The pause")
        except InvalidInput as error:
            raise forms.ValidationError(error.detail) from error
        return at


def _preview_quota(objects: Sequence[Tenant], values: Mapping[str, Any]) -> Preview:
    if "limit" not in values:
        return Preview(())
    changes = [(tenant, quotas.preview_quota(tenant, values["limit"])) for tenant in objects]
    lines = []
    for tenant, change in changes:
        before = "no quota" if change.before is None else f"quota {change.before}"
        lines.append(f"{tenant.slug}: {before} now. {change.sentence()}")
    standing: dict[Any, int | None] = {tenant.pk: change.before for tenant, change in changes}
    standing["limit"] = values["limit"]
    return Preview(lines, standing, warning=any(change.over for _, change in changes))


def _set_quota(order: Order) -> Outcome:
    limit = order.values["limit"]

    def change(tenant: Tenant) -> quotas.QuotaChange:
        expected = (order.standing[tenant.pk],)
        return quotas.set_quota(tenant, limit, actor=order.actor, reason=order.reason, expected=expected)

    changes = order.each(change)
    if len(changes) == 1:
        return Outcome(f"Quota of {order.objects[0].slug}: {changes[0].sentence()}", 1)
    over = sum(change.over for change in changes)
    return Outcome(
        f"Quota {limit} set for {len(changes)} tenants; {over} over in all, nothing is killed.", len(changes)
    )


def _preview_removal(objects: Sequence[Tenant], _: Mapping[str, Any]) -> Preview:
    lines: list[str] = []
    standing: dict[int, int | None] = {}
    for tenant in objects:
        change = quotas.preview_quota(tenant, 0)
        if change.before is None:
            lines.append(f"{tenant.slug}: has no quota.")
        else:
            lines.append(
                f"{tenant.slug}: quota {change.before}, {change.in_flight} in use. Its runs go on, unlimited."
            )
        standing[tenant.pk] = change.before
    return Preview(lines, standing)


def _remove_quota(order: Order) -> Outcome:
    changes = order.each(lambda tenant: quotas.remove_quota(tenant, actor=order.actor, reason=order.reason))
    removed = [change for change in changes if change is not None]
    return Outcome(f"Removed {len(removed)} of {len(order.objects)} quotas; no run was touched.", len(removed))


def _pause(order: Order) -> Outcome:
    resume_at = order.values["resume_at"]
    paused = sum(
        order.each(
            lambda tenant: tenants.pause_tenant(tenant, actor=order.actor, reason=order.reason, resume_at=resume_at)
        )
    )
    return _counted("Paused", paused, len(order.objects), "had been paused before")


def _resume(order: Order) -> Outcome:
    resumed = sum(order.each(lambda tenant: tenants.resume_tenant(tenant, actor=order.actor, reason=order.reason)))
    return _counted("Resumed", resumed, len(order.objects), "was not paused")


class DeleteForm(ReasonForm):
    """Whether live work is waited for."""

    drain = forms.BooleanField(
        required=False,
        label="Drain it first",
        help_text="Queued runs are cancelled, running ones finish, and then it goes, with runners of its own. "
        "Otherwise live work and such runners refuse.",
    )
    field_order = ("drain", "reason")


def _delete(order: Order) -> Outcome:
    drain = bool(order.values.get("drain"))
    gone = order.each(lambda one: delete_tenant(one, actor=order.actor, reason=order.reason, drain=drain))
    names = ", ".join(t.slug for t in order.objects)
    if all(gone):
        return Outcome(f"Deleted {names} and its history.", len(gone))
    return Outcome(f"{names} takes no more work; it goes when its own has ended.", len(gone))


def _counted(done: str, changed: int, asked: int, otherwise: str) -> Outcome:
    note = f" {asked - changed} {otherwise}." if asked > changed else ""
    return Outcome(f"{done} {changed} tenant{'' if changed == 1 else 's'}.{note}", changed)


SET_QUOTA = Verb(
    name="set-quota",
    label="Set quota",
    permission="admission.set_quota",
    perform=_set_quota,
    explain="Bounds what this tenant has in flight over the whole fleet, at every instant. Lowering it kills nothing: "
    "nothing is admitted until the excess has drained.",
    form=QuotaForm,
    preview=_preview_quota,
    preview_from_form=True,
    icon="speed",
)
REMOVE_QUOTA = Verb(
    name="remove-quota",
    label="Remove quota",
    permission="admission.set_quota",
    perform=_remove_quota,
    explain="Without a quota only the fleet's own capacity bounds this tenant. Its runs are not touched.",
    preview=_preview_removal,
    applies=lambda tenant: tenant.has_quota,
    icon="all_inclusive",
)
PAUSE = Verb(
    name="pause",
    label="Pause",
    permission="admission.pause_tenant",
    perform=_pause,
    explain="Nothing of this tenant is admitted any more; what runs goes on, and submitting stays possible.",
    form=PauseForm,
    applies=lambda tenant: tenant.paused_at is None,
    icon="pause_circle",
)
RESUME = Verb(
    name="resume",
    label="Resume",
    permission="admission.pause_tenant",
    perform=_resume,
    explain="Admits this tenant's queued runs again, in fair order with everybody else's.",
    applies=lambda tenant: tenant.paused_at is not None,
    icon="play_circle",
)
DELETE = Verb(
    name="delete",
    label="Delete",
    permission="admission.delete_tenant",
    perform=_delete,
    explain="Deletes the tenant with its history, batches and tokens; the audit log stays. Refused while any of its "
    "runs has not ended, any permit is held or it has runners of its own, unless it is drained first: then its "
    "runners finish what they have, and are revoked and removed with it. This is not taken back.",
    form=DeleteForm,
    many=False,
    danger=True,
    removes=True,
    icon="delete",
)

TENANT_VERBS = (SET_QUOTA, REMOVE_QUOTA, PAUSE, RESUME, ISSUE_TOKEN, DELETE)
