"""Forcing permits free (rule O2): a takeover of the run that holds one, a release of what another system holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import transaction

from admission.models import Permit, Run, Tenant
from admission.services.permits import OUTSIDE_PREFIX, force_release_permit
from admission.services.runs import Ended, requeue_runs
from admission.states import HOLDING
from controlplane.core.audit import Actor
from controlplane.core.errors import NotFound


@dataclass(frozen=True, slots=True)
class Forced:
    """What became of the permits that were named. `gone`: it had changed hands or ended meanwhile."""

    taken: Sequence[Ended]
    released: Sequence[Permit]
    gone: int


def force_release(permits: Sequence[Permit], *, actor: Actor, reason: str) -> Forced:
    """Run permits by taking over their runs, outside permits by identity; all in one transaction.

    Raises:
        Conflict: one is a run's and strict fencing is on.
    """
    runs = holding_runs(permits)
    outside = [permit for permit in permits if permit.run_id is None]
    with transaction.atomic():
        taken = requeue_runs([(run.pk, run.epoch) for run in runs], actor=actor, reason=reason)
        released = [permit for permit in outside if force_release_permit(permit, actor=actor, reason=reason)]
    return Forced(taken, released, len(runs) - len(taken) + len(outside) - len(released))


def holding_runs(permits: Sequence[Permit]) -> list[Run]:
    """The runs that hold these, where they still do; without their specifications."""
    ids = {permit.run_id for permit in permits if permit.run_id is not None}
    return list(Run.objects.filter(pk__in=ids, state__in=HOLDING).defer("spec").order_by("pk")) if ids else []


def find_permits(name: str, tenant: Tenant | None) -> list[Permit]:
    """By what the lists call them: `run.attempt`, or with its tenant the id that another system gave it.

    A run has one for each limit that it needs. Raises NotFound.
    """
    holder = name if tenant is None else f"{OUTSIDE_PREFIX}{tenant.pk}:{name}"
    found = Permit.objects.filter(holder=holder, run__isnull=tenant is not None)
    if tenant is not None:
        found = found.filter(tenant=tenant)
    if not (permits := list(found.order_by("pk"))):
        raise NotFound(
            f"There is no permit {name!r}.",
            hint="A run's is called run.attempt; another system's is named together with its tenant.",
        )
    return permits
