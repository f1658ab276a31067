"""Deleting a tenant (rule A26): refused while it has live work, or drained first. Never leaks a permit.

Once `deleting_at` stands nothing of the tenant is submitted, admitted or claimed any more (each of these holds its row
and asks). What runs is finished; what is queued, also by a retry, is cancelled; when nothing is open and nothing held,
its history goes in batches, then what other apps keep of it (admission.belongings), and the tenant last. Any process
may go on where another stopped.
"""

from __future__ import annotations

from django.db import transaction
from django.db.models.functions import Now

from admission.belongings import MOST_NAMED, read_belongings
from admission.models import Tenant
from admission.services.runs import cancel_runs
from admission.sql import quotas as sql
from admission.sql import sweeping
from admission.states import HOLDING, RunState
from controlplane.core.audit import SYSTEM, Actor, record
from controlplane.core.errors import Conflict, NotFound
from controlplane.core.loops import Progress
from controlplane.core.sql import one, rows

BATCH = 500
MOST_STEPS = 50
"""Of one call; what is left is the sweep's."""


def delete_tenant(tenant: Tenant, *, actor: Actor, reason: str, drain: bool = False) -> bool:
    """Delete a tenant with its history. True: it is gone; False: it is marked, and goes when its work has ended.

    Raises:
        Conflict: it has live work, or runners of its own, and is not to be drained.
    """
    with transaction.atomic():
        if one(sql.LOCK_TENANT, {"tenant_id": tenant.pk}) is None:
            raise NotFound(f"There is no tenant {tenant.slug!r}.")
        if not drain:
            _refuse_if_in_use(tenant)
        live = tenant.runs.filter(state__in=(*HOLDING, RunState.QUEUED))[: BATCH + 1].count()
        permits = tenant.permits.filter(run__isnull=True)[: BATCH + 1].count()
        if (live or permits) and not drain:
            raise Conflict(
                f"Tenant {tenant.slug!r} has {_counted(live)} runs that have not ended and holds {_counted(permits)} "
                "permits for other systems.",
                hint="Drain it: queued runs are cancelled, running ones finish, and then it goes.",
                code="tenant_busy",
            )
        if Tenant.objects.filter(pk=tenant.pk, deleting_at__isnull=True).update(deleting_at=Now()):
            record("delete", "tenant", tenant.slug, actor=actor, reason=reason, after={"drain": drain})
    for _ in range(MOST_STEPS):
        if not _step(tenant.pk):
            break
    return not Tenant.objects.filter(pk=tenant.pk).exists()


def finish_deletions() -> Progress:
    """One step of one tenant that is being deleted and does not wait for anything. For the leader's sweep."""
    found = one(sweeping.READ_DELETABLE)
    done = found is not None and _step(found["id"])
    return Progress({"tenants": int(done)}, more=done)


def _counted(number: int) -> str:
    return f"more than {BATCH}" if number > BATCH else str(number)


def _refuse_if_in_use(tenant: Tenant) -> None:
    for belonging in read_belongings():
        names = belonging.in_use(tenant.pk)
        if names:
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            raise Conflict(
                f"Tenant {tenant.slug!r} has {len(names)} {belonging.title}: {', '.join(names[:MOST_NAMED])}{more}.",
                hint=belonging.hint,
                code="tenant_busy",
            )


def _step(tenant_id: int) -> bool:
    """One step: cancel what is queued, else remove a batch of history, else the tenant. False: it waits."""
    with transaction.atomic():
        if one(sweeping.LOCK_DELETING, {"tenant_id": tenant_id}) is None:
            return False
        queued = [r["id"] for r in rows(sweeping.READ_QUEUED, {"tenant_id": tenant_id, "limit": BATCH})]
        if queued:
            return bool(cancel_runs(queued, actor=SYSTEM, reason="its tenant is being deleted"))
        tenant = Tenant.objects.get(pk=tenant_id)
        if tenant.runs.filter(state__in=HOLDING).exists() or tenant.permits.exists():
            return False
        ended = list(tenant.runs.order_by("pk").values_list("pk", flat=True)[:BATCH])
        if ended:
            tenant.runs.filter(pk__in=ended).delete()
            return True
        # Asked under the lock of the tenant, which a new one of them would have to wait for.
        if not any(b.model.objects.filter(tenant_id=tenant_id).exists() for b in read_belongings()):
            tenant.batches.all().delete()
            record("deleted", "tenant", tenant.slug, actor=SYSTEM)
            tenant.delete()
            return True
    # After that transaction: a runner's row is locked before its tenant's, never after.
    return any(b.remove(tenant_id) for b in read_belongings())
