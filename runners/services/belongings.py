"""A tenant's own runners, when the tenant goes."""

from __future__ import annotations

from admission.belongings import Belonging
from controlplane.core.audit import SYSTEM
from runners.models import EnrolmentToken, Runner
from runners.services.fleet import revoke_runner


def _in_use(tenant_id: int) -> list[str]:
    found = Runner.objects.filter(tenant_id=tenant_id, revoked_at__isnull=True).order_by("name", "pk")
    return [f"{name} ({pk})" for name, pk in found.values_list("name", "pk")]


def _remove(tenant_id: int) -> bool:
    """The enrolment tokens first, or another runner could come by one. Each runner is revoked for the audit log."""
    EnrolmentToken.objects.filter(tenant_id=tenant_id).delete()
    found = list(Runner.objects.filter(tenant_id=tenant_id).values_list("pk", flat=True))
    for runner in found:
        revoke_runner(runner, actor=SYSTEM, reason="its tenant is deleted")
    Runner.objects.filter(pk__in=found).delete()
    return bool(found)


OWN_RUNNERS = Belonging(
    model=Runner,
    title="runners of its own",
    hint="Revoke them, or drain the tenant: they finish its runs, and are revoked and removed with it.",
    in_use=_in_use,
    remove=_remove,
)
