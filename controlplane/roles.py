"""The four roles, as Django groups: who may see, who may act, who may change limits, who may do everything.

Installed by migrations, idempotently: a later one that brings a new verb calls `install_roles` again. It only adds, so
what an operator took away from or gave to a group beyond this stays as it is.
"""

from __future__ import annotations

from typing import Any, Final

APPS: Final = ("admission", "leadership", "runners", "recovery", "core", "django_q")

OPERATOR_VERBS: Final = (
    "admission.cancel_run",
    "admission.requeue_run",
    "admission.submit_run",
    "admission.pause_tenant",
    "admission.force_release_permit",
    "admission.reconcile_physical",
    "leadership.step_down",
    "leadership.run_loop",
    "leadership.retry_intent",
    "recovery.drain_replica",
    "recovery.retry_debt",
    "runners.pause_runner",
)
QUOTA_VERBS: Final = ("admission.set_quota", "admission.change_tenant")
ADMIN_VERBS: Final = (
    *OPERATOR_VERBS,
    *QUOTA_VERBS,
    "admission.add_tenant",
    "admission.delete_tenant",
    "admission.add_apitoken",
    "admission.change_apitoken",
    "runners.enrol_runner",
    "runners.revoke_runner",
    "runners.rotate_runner",
    "runners.manage_secret",
    "auth.view_user",
    "auth.add_user",
    "auth.change_user",
    "auth.delete_user",
    "auth.view_group",
    "auth.add_group",
    "auth.change_group",
    "auth.delete_group",
    "django_q.delete_schedule",
)
TAKEN_BACK: Final = ("django_q.add_schedule", "django_q.change_schedule")
"""Of no role: whoever may write a schedule may have any function of the product, or of Python, called."""

ROLES: Final[dict[str, tuple[str, ...]]] = {
    "viewer": (),
    "operator": OPERATOR_VERBS,
    "quota manager": QUOTA_VERBS,
    "admin": ADMIN_VERBS,
}
"""Each on top of seeing everything of the product."""


def install_roles(group: type[Any], permission: type[Any]) -> None:
    """Make the groups that are missing and give each what it lacks.

    A permission that no migration has made yet is left to the migration that will.
    """
    known = {(p.content_type.app_label, p.codename): p for p in permission.objects.select_related("content_type")}
    seeing = [p for (app, codename), p in known.items() if app in APPS and codename.startswith("view_")]
    for name, verbs in ROLES.items():
        role, _ = group.objects.get_or_create(name=name)
        split = [tuple(verb.split(".")) for verb in verbs]
        role.permissions.add(*seeing, *(known[verb] for verb in split if verb in known))


def take_back(group: type[Any], permission: type[Any]) -> None:
    """What an earlier version gave to the roles and no role has any more. A user's own permissions stay."""
    codenames = [verb.partition(".")[2] for verb in TAKEN_BACK]
    taken = permission.objects.filter(content_type__app_label="django_q", codename__in=codenames)
    for role in group.objects.filter(name__in=ROLES):
        role.permissions.remove(*taken)
