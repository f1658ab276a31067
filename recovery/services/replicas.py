"""Replicas: register, beat, drain, resume, leave."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from admission.drivers import Driver
from admission.services.probes import forget_probe
from admission.states import DriverKind
from controlplane.core.audit import Actor, record
from controlplane.core.conf import conf
from controlplane.core.errors import Conflict, NotFound
from controlplane.core.identity import ProcessIdentity, proven_gone
from controlplane.core.sql import one
from recovery import sql
from recovery.models import Replica
from recovery.services.deaths import declare_and_claim
from recovery.services.situation import gap_seconds

WATCH_SECONDS = 1.0


class ReplicaIdInUse(Conflict):
    """Another living process beats under this pinned id."""

    code = "replica_id_in_use"


@dataclass(frozen=True, slots=True)
class Machine:
    """What a replica offers."""

    executor: str
    slots: int
    memory_mib: int = 0
    cpu: float = 0.0


def register_replica(name: str, process: ProcessIdentity, machine: Machine) -> Replica:
    """A heartbeat row for a new incarnation, before anything reads the live set.

    An earlier incarnation under the same name is displaced only if its process is proven gone, or if it stays silent
    for two beat intervals while being watched; its runs are then claimed by the reconciliation that follows.

    Raises:
        ReplicaIdInUse: it lives.
    """
    for earlier in Replica.objects.filter(name=name, declared_dead_at__isnull=True):
        if not displace_silent(earlier, process):
            raise _in_use(name)
    try:
        with transaction.atomic():
            return Replica.objects.create(
                name=name,
                incarnation=process.incarnation,
                host=process.host,
                machine=process.machine,
                boot_id=process.boot_id,
                pid=process.pid,
                pid_start=process.pid_start,
                version=version("wharfinger"),
                executor=machine.executor,
                slots=machine.slots,
                memory_mib=machine.memory_mib,
                cpu=machine.cpu,
            )
    except IntegrityError as error:
        raise _in_use(name) from error


def displace_silent(earlier: Replica, process: ProcessIdentity) -> bool:
    """Declare an earlier incarnation of our own pinned id dead and claim it. False: it lives.

    Proven gone, or watched for two beat intervals without a beat (rule L9). The own pinned id is exempt from holds.
    """
    gone = proven_gone(machine=earlier.machine, boot=earlier.boot_id, pid=earlier.pid, pid_start=earlier.pid_start)
    if not gone and not _stays_silent(earlier):
        return False
    # Compare-and-set on the beat that was read first: one beat in between, and it lives.
    if declare_and_claim(earlier.pk, claimant=str(process.incarnation), proof="unchanged", seen=earlier.beat_at):
        return True
    current = Replica.objects.filter(pk=earlier.pk, declared_dead_at__isnull=True).first()
    return current is None or current.beat_at == earlier.beat_at


def _stays_silent(earlier: Replica) -> bool:
    deadline = time.monotonic() + 2 * conf().heartbeat_interval_seconds
    while time.monotonic() < deadline:
        time.sleep(min(WATCH_SECONDS, conf().heartbeat_interval_seconds / 4))
        if (
            Replica.objects.filter(pk=earlier.pk, declared_dead_at__isnull=True)
            .exclude(beat_at=earlier.beat_at)
            .exists()
        ):
            return False
    return True


def _in_use(name: str) -> ReplicaIdInUse:
    return ReplicaIdInUse(
        f"A living replica beats as {name!r} already.",
        hint="Give each replica its own CONTROLPLANE_REPLICA_ID, or stop the other one first.",
    )


def beat(replica_id: int) -> bool | None:
    """One heartbeat. None: this incarnation was declared dead; else whether an operator wants it drained."""
    row = one(sql.BEAT, {"replica": replica_id, "gap_seconds": gap_seconds()})
    return None if row is None else bool(row["draining"])


def replica_driver(replica: Replica) -> Driver:
    """The replica as admission sees it."""
    return Driver(
        kind=DriverKind.REPLICA,
        id=replica.pk,
        name=replica.name,
        incarnation=replica.incarnation,
        lock=partial(_lock, replica.pk),
        backends=(replica.executor,),
    )


def _lock(replica_id: int) -> bool:
    return one(sql.LOCK_DRIVER, {"replica": replica_id}) is not None


def get_replica(replica_id: int) -> Replica:
    """Raises NotFound."""
    found = Replica.objects.filter(pk=replica_id).first()
    if found is None:
        raise NotFound(f"There is no replica {replica_id}.")
    return found


def living_replica(name: str) -> Replica:
    """The incarnation that lives under this pinned id. Raises NotFound."""
    found = Replica.objects.filter(name=name, declared_dead_at__isnull=True).first()
    if found is None:
        raise NotFound(f"No living replica is called {name!r}.", hint="manage.py replicas list shows them.")
    return found


def drain_replica(replica: Replica, *, actor: Actor, reason: str) -> bool:
    """No new work for it; what runs is finished. False: it was draining already, or is dead."""
    with transaction.atomic():
        # The row's key lock makes this race-free: after it commits, no admission that saw it undrained is under way.
        Replica.objects.select_for_update().filter(pk=replica.pk).first()
        changed = Replica.objects.filter(
            pk=replica.pk, draining_at__isnull=True, declared_dead_at__isnull=True
        ).update(draining_at=Now(), drain_note=reason)
        if changed:
            record("drain", "replica", replica.name, actor=actor, reason=reason)
    return bool(changed)


def resume_replica(replica: Replica, *, actor: Actor, reason: str = "") -> bool:
    """Give it work again. False: it was not draining."""
    with transaction.atomic():
        changed = Replica.objects.filter(pk=replica.pk, draining_at__isnull=False).update(
            draining_at=None, drain_note=""
        )
        if changed:
            record("resume", "replica", replica.name, actor=actor, reason=reason)
    return bool(changed)


def leave(replica_id: int) -> bool:
    """A clean goodbye: nothing is held any more, so the row goes at once. False: something is; recovery will see."""
    with transaction.atomic():
        Replica.objects.select_for_update().filter(pk=replica_id).first()
        Replica.objects.filter(pk=replica_id, declared_dead_at__isnull=True).update(declared_dead_at=Now())
        forget_probe(DriverKind.REPLICA, replica_id)
        return one(sql.FINISH, {"replica": replica_id}) is not None
