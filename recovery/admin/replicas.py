"""Replicas with their beats."""

# ruff: noqa: D102 - a column says what it is by its description

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.contrib import admin
from django.db.models import OuterRef, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from admission.models import Run
from admission.states import HOLDING, DriverKind
from controlplane.admin_base import ReadOnlyAdmin, render
from controlplane.admin_base.clock import SecondsSince
from controlplane.admin_base.drivers import DriverSign, Health, judge_health, register_driver_source
from controlplane.admin_base.subqueries import CappedCount
from controlplane.admin_base.verbs import Order, Outcome, Preview, Verb
from controlplane.core.conf import conf
from recovery.admin.notices import HoldNotice
from recovery.models import Replica
from recovery.services.replicas import drain_replica, resume_replica


def replica_health(replica: Any) -> Health:
    """By the database's clock, against the settings."""
    if replica.declared_dead_at is not None:
        return "dead"
    settings = conf()
    return judge_health(
        replica.heard_seconds,
        beat=settings.heartbeat_interval_seconds,
        silent=settings.replica_stale_seconds,
        draining=replica.draining_at is not None,
    )


def _signs(ids: Iterable[int]) -> Mapping[int, DriverSign]:
    found: QuerySet[Any] = Replica.objects.filter(pk__in=list(ids)).annotate(heard_seconds=SecondsSince("beat_at"))
    return {r.pk: DriverSign(f"Replica {r.name}", replica_health(r), r.heard_seconds) for r in found}


register_driver_source(DriverKind.REPLICA, _signs)


def _preview_drain(replicas: Sequence[Any], _: Mapping[str, Any]) -> Preview:
    return Preview(
        [f"{r.name}: {r.holding} of {r.slots} slots in use; these runs are finished first." for r in replicas]
    )


def _drain(order: Order) -> Outcome:
    done = sum(order.each(lambda replica: drain_replica(replica, actor=order.actor, reason=order.reason)))
    return _counted("draining", done, len(order.objects))


def _resume(order: Order) -> Outcome:
    done = sum(order.each(lambda replica: resume_replica(replica, actor=order.actor, reason=order.reason)))
    return _counted("taking work again", done, len(order.objects))


def _counted(what: str, done: int, asked: int) -> Outcome:
    note = f" {asked - done} left as they were." if asked > done else ""
    return Outcome(f"{done} replica{'' if done == 1 else 's'} {what}.{note}", done)


DRAIN = Verb(
    name="drain",
    label="Drain",
    permission="recovery.drain_replica",
    perform=_drain,
    explain="It is given nothing more and finishes what it has. It stays until it is stopped or resumed.",
    preview=_preview_drain,
    applies=lambda replica: replica.declared_dead_at is None and replica.draining_at is None,
    icon="water_drop",
)
RESUME = Verb(
    name="resume",
    label="Resume",
    permission="recovery.drain_replica",
    perform=_resume,
    explain="It is given work again.",
    applies=lambda replica: replica.declared_dead_at is None and replica.draining_at is not None,
    icon="play_circle",
)


@admin.register(Replica)
class ReplicaAdmin(HoldNotice, ReadOnlyAdmin):
    """Incarnations that beat, and dead ones until their work is settled."""

    verbs = (DRAIN, RESUME)
    list_display = ("name", "health", "beat", "load", "runs", "executor", "version", "host", "started", "note")
    list_filter = ("executor",)
    search_fields = ("name__startswith", "host__startswith")
    ordering = ("name", "-id")
    fields = (
        ("name", "health", "beat"),
        ("load", "runs", "executor"),
        ("envelope", "version"),
        ("host", "pid", "boot_id"),
        ("started", "draining_at", "drain_note"),
        ("incarnation", "declared_dead_at"),
        ("held_until", "held_why", "gap_from", "resumed_at"),
    )
    empty_list_hint = "No replica beats. Start one: manage.py replica (or the whole fleet: manage.py up)."

    def get_queryset(self, request: HttpRequest) -> QuerySet[Replica]:
        """With the age of the last beat and the number of runs held."""
        queryset: QuerySet[Replica] = super().get_queryset(request)
        held = Run.objects.filter(driver_kind=DriverKind.REPLICA, driver_id=OuterRef("pk"), state__in=HOLDING)
        return queryset.annotate(heard_seconds=SecondsSince("beat_at"), holding=CappedCount(held))

    @admin.display(description="health")
    def health(self, replica: Any) -> SafeString:
        return render.health_badge(replica_health(replica))

    @admin.display(description="last beat", ordering="-beat_at")
    def beat(self, replica: Any) -> SafeString:
        settings = conf()
        return render.age(
            replica.heard_seconds,
            replica.beat_at,
            warn=2.5 * settings.heartbeat_interval_seconds,
            bad=settings.replica_stale_seconds,
        )

    @admin.display(description="slots in use")
    def load(self, replica: Any) -> SafeString:
        return render.bar(replica.holding, replica.slots, "slots")

    @admin.display(description="admits up to")
    def envelope(self, replica: Replica) -> str:
        memory = f"{replica.memory_mib:,} MiB" if replica.memory_mib else "any memory"
        cpu = f"{replica.cpu:g} processors" if replica.cpu else "any processors"
        return f"{memory}, {cpu} in use on its machine"

    @admin.display(description="runs")
    def runs(self, replica: Any) -> SafeString | str:
        query = {"driver_kind__exact": "replica", "driver_id": replica.pk}
        return render.list_link("admin:admission_run_changelist", f"{replica.holding} held", **query)

    @admin.display(description="started (UTC)", ordering="started_at")
    def started(self, replica: Replica) -> SafeString:
        return render.moment(replica.started_at)

    @admin.display(description="note")
    def note(self, replica: Replica) -> SafeString | str:
        if replica.held_until is not None and replica.declared_dead_at is None:
            return render.badge("held", "warn", replica.held_why)
        return replica.drain_note or render.EMPTY
