"""Replicas with their beats, and what recovery did about dead ones."""

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
from controlplane.admin_base.filters import fixed_values
from controlplane.admin_base.subqueries import CappedCount
from controlplane.admin_base.verbs import Order, Outcome, Preview, Verb
from controlplane.core.conf import conf
from recovery.models import RecoveryAction, RecoveryClaim, Replica
from recovery.services.replicas import drain_replica, resume_replica

OUTCOME_TONES = {"requeued": "good", "interrupted": "warn", "deferred": "bad", "cancelled": "mute"}


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
    done = sum(drain_replica(replica, actor=order.actor, reason=order.reason) for replica in order.objects)
    return _counted("draining", done, len(order.objects))


def _resume(order: Order) -> Outcome:
    done = sum(resume_replica(replica, actor=order.actor, reason=order.reason) for replica in order.objects)
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
class ReplicaAdmin(ReadOnlyAdmin):
    """Incarnations that beat, and dead ones until their work is settled."""

    verbs = (DRAIN, RESUME)
    list_display = ("name", "health", "beat", "load", "runs", "executor", "version", "host", "started", "note")
    list_filter = ("executor",)
    search_fields = ("name__startswith", "host__startswith")
    ordering = ("name", "-id")
    fields = (
        ("name", "health", "beat"),
        ("load", "runs", "executor"),
        ("memory_mib", "cpu", "version"),
        ("host", "pid", "boot_id"),
        ("started", "draining_at", "drain_note"),
        ("incarnation", "declared_dead_at"),
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

    @admin.display(description="runs")
    def runs(self, replica: Any) -> SafeString | str:
        query = {"driver_kind__exact": "replica", "driver_id": replica.pk}
        return render.list_link("admin:admission_run_changelist", f"{replica.holding} held", **query)

    @admin.display(description="started (UTC)", ordering="started_at")
    def started(self, replica: Replica) -> SafeString:
        return render.moment(replica.started_at)

    @admin.display(description="note")
    def note(self, replica: Replica) -> SafeString | str:
        return replica.drain_note or render.EMPTY


@admin.register(RecoveryClaim)
class RecoveryClaimAdmin(ReadOnlyAdmin):
    """Who reconciles which dead incarnation right now."""

    list_display = ("replica", "claimant", "claimed", "held_for")
    list_select_related = ("replica",)
    fields = ("replica", "claimant", "claimed", "held_for")
    empty_list_hint = "No dead replica is being reconciled."

    def get_queryset(self, request: HttpRequest) -> QuerySet[RecoveryClaim]:
        """With ages by the database's clock."""
        queryset: QuerySet[RecoveryClaim] = super().get_queryset(request)
        return queryset.annotate(age_seconds=SecondsSince("claimed_at"))

    @admin.display(description="claimed (UTC)", ordering="claimed_at")
    def claimed(self, claim: RecoveryClaim) -> SafeString:
        return render.moment(claim.claimed_at)

    @admin.display(description="age")
    def held_for(self, claim: Any) -> SafeString:
        return render.age(claim.age_seconds, claim.claimed_at, bad=conf().recovery_claim_ttl_seconds)


@admin.register(RecoveryAction)
class RecoveryActionAdmin(ReadOnlyAdmin):
    """The recovery log: one row for everything it did, or deliberately left alone, and why."""

    list_display = ("when", "ago", "outcome_badge", "run", "replica_name", "by", "reason")
    list_display_links = ("when",)
    list_filter = (fixed_values("outcome", *OUTCOME_TONES),)
    search_fields = ("=run_id", "replica_name__startswith")
    search_help_text = "Run id, or the beginning of a replica's name"
    ordering = ("-id",)
    fields = (("when", "outcome_badge"), ("run", "epoch"), ("replica_name", "by"), "reason")
    empty_list_hint = "Nothing had to be recovered yet. Kill a replica and look here a minute and a half later."

    def get_queryset(self, request: HttpRequest) -> QuerySet[RecoveryAction]:
        """With ages by the database's clock."""
        queryset: QuerySet[RecoveryAction] = super().get_queryset(request)
        return queryset.annotate(age_seconds=SecondsSince("at"))

    @admin.display(description="at (UTC)", ordering="id")
    def when(self, action: RecoveryAction) -> SafeString:
        return render.moment(action.at)

    @admin.display(description="age")
    def ago(self, action: Any) -> SafeString:
        return render.age(action.age_seconds, action.at)

    @admin.display(description="outcome", ordering="outcome")
    def outcome_badge(self, action: RecoveryAction) -> SafeString:
        return render.badge(action.outcome, OUTCOME_TONES.get(action.outcome, "mute"))

    @admin.display(description="run", ordering="run_id")
    def run(self, action: RecoveryAction) -> SafeString:
        if action.run_id is None:
            return render.EMPTY
        return render.link("admin:admission_run_change", action.run_id, f"run {action.run_id}")
