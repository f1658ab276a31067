"""Cancel and requeue, for one run or many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from admission.models import Run
from admission.services.runs import cancel_runs, requeue_runs
from admission.states import HOLDING, RunState
from controlplane.admin_base.drivers import driver_signs
from controlplane.admin_base.verbs import Order, Outcome, Preview, Verb

OPEN = (RunState.QUEUED, *HOLDING)
NAMED_TENANTS = 5


def _tenants(runs: Sequence[Run]) -> str:
    counted = Counter(run.tenant.slug for run in runs).most_common()
    named = ", ".join(f"{count:,} of {slug}" for slug, count in counted[:NAMED_TENANTS])
    more = len(counted) - NAMED_TENANTS
    return named + (f", and {more} more tenants" if more > 0 else "")


def _preview_cancel(runs: Sequence[Run], _: Mapping[str, Any]) -> Preview:
    states = Counter(run.state for run in runs)
    queued = states[RunState.QUEUED]
    held = states[RunState.ADMITTED] + states[RunState.RUNNING]
    ended = len(runs) - queued - held
    lines = [f"{_tenants(runs)}."]
    if queued:
        lines.append(f"{queued:,} queued: cancelled at once.")
    if held:
        lines.append(f"{held:,} with a driver: asked to stop; cancelled when it is confirmed that they stopped.")
    if ended:
        lines.append(f"{ended:,} ended already: left as they are.")
    return Preview(lines)


def _cancel(order: Order) -> Outcome:
    ids = [run.pk for run in order.objects]
    moved = cancel_runs(ids, actor=order.actor, reason=order.reason)
    at_once = sum(state is RunState.CANCELLED for state in moved.values())
    parts = [f"{at_once:,} cancelled", f"{len(moved) - at_once:,} asked to stop"]
    if missed := len(ids) - len(moved):
        parts.append(f"{missed:,} had ended")
    return Outcome(f"Of {_runs(len(ids))}: {', '.join(parts)}.", len(moved))


def _preview_requeue(runs: Sequence[Run], _: Mapping[str, Any]) -> Preview:
    held = [run for run in runs if run.state in HOLDING]
    lines = [f"{_tenants(runs)}.", f"{len(held):,} taken from the driver and queued again, permits returned."]
    if other := len(runs) - len(held):
        lines.append(f"{other:,} without a driver: left as they are.")
    signs = driver_signs({(run.driver_kind, run.driver_id) for run in held if run.driver_id is not None})
    lines += [sign.sentence() for _, sign in sorted(signs.items())]
    alive = any(sign.health in ("live", "draining", "late") for sign in signs.values())
    if alive:
        lines.append("A living driver stops the work when it hears of this: until then it may run twice.")
    return Preview(lines, warning=alive)


def _requeue(order: Order) -> Outcome:
    holds = [(run.pk, run.epoch) for run in order.objects if run.state in HOLDING]
    taken = requeue_runs(holds, actor=order.actor, reason=order.reason)
    queued = sum(ended.state is RunState.QUEUED for ended in taken)
    parts = [f"{queued:,} queued again"]
    if ended := len(taken) - queued:
        parts.append(f"{ended:,} ended, having no try left")
    if missed := len(order.objects) - len(taken):
        parts.append(f"{missed:,} left as they are")
    return Outcome(f"Of {_runs(len(order.objects))}: {', '.join(parts)}.", len(taken))


def _runs(count: int) -> str:
    return f"{count:,} run{'' if count == 1 else 's'}"


CANCEL = Verb(
    name="cancel",
    label="Cancel",
    permission="admission.cancel_run",
    perform=_cancel,
    explain="Queued runs end here. Runs with a driver are asked to stop, and keep their permits until they did.",
    preview=_preview_cancel,
    applies=lambda run: run.state in OPEN and run.cancel_requested_at is None,
    danger=True,
    icon="cancel",
)

REQUEUE = Verb(
    name="requeue",
    label="Requeue",
    permission="admission.requeue_run",
    perform=_requeue,
    explain="Takes runs away from their drivers and puts them back into the queue, as recovery does for a dead one.",
    preview=_preview_requeue,
    applies=lambda run: run.state in HOLDING,
    danger=True,
    icon="replay",
)
