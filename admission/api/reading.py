"""Rows for the API: what is read with what, so that a page costs the same number of statements whatever is on it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db.models import (
    Case,
    DurationField,
    ExpressionWrapper,
    F,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
    Value,
    When,
)
from django.db.models import CharField as Text
from django.db.models import IntegerField as Whole
from django.db.models.functions import Cast, Coalesce, Extract, Now

from admission.models import Attempt, Counter, Permit, Run, Tenant
from admission.states import HOLDING, Scope
from controlplane.core.sql import rows

MAX_ATTEMPTS = 100
COUNTED_ONE = 100_000
COUNTED_LIST = 10_000

# Runs of batches by state; each batch is counted up to a bound. No locks. Index: run_batch.
COUNT_STATES = """
SELECT b.id, s.state, count(*)::int AS runs FROM unnest(%(batches)s::bigint[]) AS b(id)
CROSS JOIN LATERAL (SELECT state FROM admission_run WHERE batch_id = b.id LIMIT %(bound)s) s
GROUP BY b.id, s.state
"""


def list_runs(tenant: Tenant | None) -> QuerySet[Run]:
    """Runs without their specifications, which may be large."""
    runs = Run.objects.select_related("tenant", "batch").defer("spec", "labels")
    return runs if tenant is None else runs.filter(tenant=tenant)


def latest_attempts(run: int) -> list[Attempt]:
    """The newest attempts of a run, oldest of them first. Index: attempt_number."""
    return list(Attempt.objects.filter(run_id=run).order_by("-number")[:MAX_ATTEMPTS])[::-1]


def timeline(run: Run, attempts: Iterable[Attempt]) -> list[dict[str, Any]]:
    """What happened to a run, in order."""
    moments: list[tuple[datetime | None, str, int | None, str]] = [
        (run.created_at, "submitted", None, run.created_by),
        (run.cancel_requested_at, "cancel_requested", None, f"{run.cancel_by}: {run.cancel_reason}".strip(": ")),
        (run.cancel_seen_at, "cancel_seen", None, ""),
        (run.cancel_stopped_at, "cancel_stopped", None, ""),
        (run.cancel_confirmed_at, "cancel_confirmed", None, ""),
    ]
    for attempt in attempts:
        moments.append((attempt.admitted_at, "admitted", attempt.number, attempt.driver_name))
        moments.append((attempt.started_at, "started", attempt.number, attempt.driver_name))
        why = f"{attempt.ending} {attempt.reason}".strip()
        moments.append((attempt.released_at, "released", attempt.number, why))
    # Stable: what has the same time keeps the order above, which is the order of cause and effect.
    ordered = sorted((moment for moment in moments if moment[0]), key=lambda moment: moment[0] or run.created_at)
    if run.finished_at:
        # Last, although read in one statement with the release and perhaps a microsecond before it.
        ordered.append((run.finished_at, run.state, None, run.reason))
    return [{"at": at, "event": name, "attempt": number, "detail": why} for at, name, number, why in ordered]


def count_states(batches: Iterable[Any], bound: int) -> None:
    """Put onto each batch its runs by state, counted up to `bound`."""
    known = {batch.pk: batch for batch in batches}
    for batch in known.values():
        batch.counts, batch.counted, batch.counted_all = {}, 0, True
    for row in rows(COUNT_STATES, {"batches": list(known), "bound": bound}):
        batch = known[row["id"]]
        batch.counts[row["state"]] = row["runs"]
        batch.counted += row["runs"]
        batch.counted_all = batch.counted < bound


def list_tenants() -> QuerySet[Tenant]:
    """Tenants with limit and use: by counter where a quota stands, else by the runs that hold compute (rule A3)."""
    counter = Counter.objects.filter(scope=Scope.TENANT, key=Cast(OuterRef("pk"), Text()))
    held = (
        Run.objects.filter(Q(kind__isnull=True) | Q(kind="task"), tenant=OuterRef("pk"), state__in=HOLDING)
        .order_by()
        .values("tenant")
        .annotate(held=Sum("weight"))
        .values("held")
    )
    counted = Subquery(counter.values("in_flight")[:1])
    uncounted = Coalesce(Subquery(held, output_field=Whole()), Value(0))
    return Tenant.objects.annotate(
        quota=Subquery(counter.values("limit")[:1]),
        in_flight=Coalesce(counted, Value(0)) + Case(When(has_quota=True, then=Value(0)), default=uncounted),
    )


def list_permits(tenant: Tenant | None) -> QuerySet[Permit]:
    """Permits with what is left of their lease."""
    left = Extract(ExpressionWrapper(F("renewed_at") - Now(), output_field=DurationField()), "epoch")
    permits = Permit.objects.select_related("tenant").annotate(lapses_in_seconds=left + F("lapse_seconds"))
    return permits if tenant is None else permits.filter(tenant=tenant)
