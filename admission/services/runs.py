"""A run's life after admission: start, renew, settle, give back, take away, cancel.

Drivers speak of holds, (run, epoch). Each verb is one statement over many holds; who lost a compare-and-set is told so
and nothing else happens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.db import transaction

from admission.drivers import Driver
from admission.sql import driving, ending
from admission.states import TERMINAL, RunState
from controlplane.core.audit import Actor, record_each
from controlplane.core.conf import conf
from controlplane.core.errors import Conflict, InvalidInput
from controlplane.core.fencing import is_strict
from controlplane.core.sql import Row, rows
from controlplane.core.wakeups import announce

RUN_DEADLINE_GRACE_SECONDS = 30.0
"""The driver ends a run at its time limit; the control plane asks for it only when the driver did not."""

MAX_DETAIL = 4000

Hold = tuple[int, int]
"""(run, epoch)"""


class HoldVerdict(StrEnum):
    """What a driver is told about a hold."""

    OK = "ok"
    CANCEL = "cancel"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of one hold as its driver saw it."""

    run: int
    epoch: int
    ending: str
    reason: str = ""
    detail: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """A hold that this call ended."""

    run: int
    attempt: int
    state: RunState
    tenant_id: int


@dataclass(frozen=True, slots=True)
class Cause:
    """Why runs may be taken from their driver; `predicate` on the run row `r` is judged under its lock."""

    name: str
    predicate: str
    burns: bool = True
    """Whether a started attempt counts against the retry limit."""
    counts_unstarted: bool = False
    """Whether an unstarted admission counts towards burning one (rule Q5)."""


START_DEADLINE = Cause("start_deadline", ending.TAKE_AWAY_CAUSES["start_deadline"], counts_unstarted=True)
RUNNER_LEASE = Cause("runner_lease", ending.TAKE_AWAY_CAUSES["runner_lease"])
OPERATOR = Cause("operator", ending.TAKE_AWAY_CAUSES["operator"])
RETURNED = Cause("returned", ending.TAKE_AWAY_CAUSES["own"])
DRAINED = Cause("drained", ending.TAKE_AWAY_CAUSES["own"], burns=False)


def _arrays(holds: Sequence[Hold]) -> dict[str, Any]:
    return {"runs": [run for run, _ in holds], "epochs": [epoch for _, epoch in holds]}


def start_runs(driver: Driver, holds: Sequence[Hold]) -> dict[Hold, HoldVerdict]:
    """Accept the start of these holds (T2). Only after OK may anything of them be executed."""
    if not holds:
        return {}
    accepted = rows(
        driving.START_RUNS,
        {
            **_arrays(holds),
            **driver.identity(),
            "lease_seconds": driver.lease_seconds,
            "deadline_grace_seconds": RUN_DEADLINE_GRACE_SECONDS,
        },
    )
    # By run and epoch: a stale hold on a run that this driver was given again is not the one that was accepted.
    verdicts = {(row["id"], row["epoch"]): HoldVerdict.OK for row in accepted}
    return {**verdicts, **_verdicts(driver, [h for h in holds if h not in verdicts])}


def renew_runs(driver: Driver, holds: Sequence[Hold]) -> dict[Hold, HoldVerdict]:
    """Renew lease and permits of exactly these holds (T3); says which to cancel and which are gone."""
    if not holds:
        return {}
    parameters = {**_arrays(holds), **driver.identity(), "lease_seconds": driver.lease_seconds}
    return _judged(holds, rows(driving.RENEW_RUNS, parameters))


def extend_starts(driver: Driver, holds: Sequence[Hold]) -> dict[Hold, HoldVerdict]:
    """The images of these are being pulled: they need not be started yet, for a bounded time (rule Q5)."""
    if not holds:
        return {}
    settings = conf()
    seconds = {"start_seconds": settings.start_deadline_seconds, "pull_seconds": settings.pull_seconds}
    parameters = {**_arrays(holds), **driver.identity(), "lease_seconds": driver.lease_seconds, **seconds}
    return _judged(holds, rows(driving.EXTEND_STARTS, parameters))


def _judged(holds: Sequence[Hold], found: Sequence[Row]) -> dict[Hold, HoldVerdict]:
    cancels = {(row["id"], row["epoch"]): row["cancel"] for row in found}
    return {
        hold: (HoldVerdict.CANCEL if cancels[hold] else HoldVerdict.OK) if hold in cancels else HoldVerdict.SUPERSEDED
        for hold in holds
    }


def read_holds(driver: Driver) -> list[Row]:
    """Everything the ledger says this driver holds (rule A10): id, epoch, attempt, state, cancel, tenant, spec."""
    return rows(driving.READ_HOLDS, driver.identity())


def _verdicts(driver: Driver, holds: Sequence[Hold]) -> dict[Hold, HoldVerdict]:
    if not holds:
        return {}
    found = {r["id"]: r for r in rows(driving.READ_VERDICTS, {"runs": [run for run, _ in holds]})}
    return {hold: _verdict(driver, hold, found.get(hold[0])) for hold in holds}


def _verdict(driver: Driver, hold: Hold, row: Row | None) -> HoldVerdict:
    if row is None or row["epoch"] != hold[1] or row["driver_id"] != driver.id:
        return HoldVerdict.SUPERSEDED
    if row["driver_kind"] != driver.kind.value or row["state"] in TERMINAL:
        return HoldVerdict.SUPERSEDED
    return HoldVerdict.CANCEL if row["cancel"] else HoldVerdict.SUPERSEDED


def settle_runs(driver: Driver, settlements: Sequence[Settlement]) -> tuple[dict[Hold, HoldVerdict], list[Ended]]:
    """Record the ends of these holds (T4, T6); their containers are confirmed gone.

    Returns the verdict of each hold, and the runs that this very call ended: only those may trigger anything further.
    A repeat of the same result is OK; another's, or a late one, is superseded.
    """
    if not settlements:
        return {}, []
    for s in settlements:
        if s.ending not in (RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT, RunState.CANCELLED):
            raise InvalidInput(f"A driver cannot end a run as {s.ending!r}.")
    moved = rows(driving.SETTLE_RUNS, {**_settle_arrays(settlements), **driver.identity()})
    if moved and moved[0]["wakes"]:
        announce()
    ended = [Ended(r["id"], r["attempt"], RunState(r["state"]), r["tenant_id"]) for r in moved]
    verdicts = {(r["id"], r["held"]): HoldVerdict.OK for r in moved}
    rest = [s for s in settlements if (s.run, s.epoch) not in verdicts]
    return {**verdicts, **_repeats(driver, rest)}, ended


def _settle_arrays(settlements: Sequence[Settlement]) -> dict[str, Any]:
    return {
        "runs": [s.run for s in settlements],
        "epochs": [s.epoch for s in settlements],
        "endings": [s.ending for s in settlements],
        "reasons": [s.reason[:60] for s in settlements],
        "details": [s.detail[:MAX_DETAIL].replace("\x00", "\ufffd") for s in settlements],
        "exit_codes": [s.exit_code for s in settlements],
    }


def _repeats(driver: Driver, settlements: Sequence[Settlement]) -> dict[Hold, HoldVerdict]:
    """OK for a repeat of the result that stands; the attempt row tells it also where the run was requeued since."""
    if not settlements:
        return {}
    keys = {"runs": [s.run for s in settlements], "epochs": [s.epoch for s in settlements], **driver.identity()}
    closed = {(r["run_id"], r["epoch"]): r for r in rows(driving.READ_CLOSED, keys)}
    verdicts = {}
    for s in settlements:
        row = closed.get((s.run, s.epoch))
        same = row is not None and row["ending"] == s.ending and row["exit_code"] == s.exit_code
        verdicts[(s.run, s.epoch)] = HoldVerdict.OK if same else HoldVerdict.SUPERSEDED
    return {**verdicts, **_acknowledged(driver, [s for s in settlements if verdicts[(s.run, s.epoch)] != "ok"])}


def _acknowledged(driver: Driver, settlements: Sequence[Settlement]) -> dict[Hold, HoldVerdict]:
    """OK for a cancel that was ended while its driver was silent, and that the driver now confirms (rule Q9)."""
    cancelled = [(s.run, s.epoch) for s in settlements if s.ending == RunState.CANCELLED]
    if not cancelled:
        return {}
    confirmed = rows(driving.ACKNOWLEDGE_CANCELS, {**_arrays(cancelled), **driver.identity()})
    return {(row["id"], row["epoch"]): HoldVerdict.OK for row in confirmed}


def take_away(
    holds: Sequence[Hold],
    cause: Cause,
    *,
    detail: str = "",
    driver: Driver | None = None,
    parameters: Mapping[str, object] | None = None,
) -> list[Ended]:
    """Take these runs from their drivers (T7) where the cause still holds; returns those that were taken."""
    if not holds:
        return []
    moved = rows(
        ending.TAKE_AWAY.format(cause=cause.predicate),
        {
            **_arrays(holds),
            "reason": cause.name,
            "detail": detail[:MAX_DETAIL],
            "burns": cause.burns,
            "counts_unstarted": cause.counts_unstarted,
            "unstarted_limit": conf().unstarted_limit,
            **(driver.identity() if driver else {}),
            **(parameters or {}),
        },
    )
    if moved:
        announce()
    return [Ended(r["id"], r["attempt"], RunState(r["state"]), r["tenant_id"]) for r in moved]


def adopt_runs(
    driver: Driver, holds: Sequence[Hold], cause: Cause, *, parameters: Mapping[str, object] | None = None
) -> dict[Hold, Hold]:
    """Drive these runs on from where their dead drivers left them (T7, "adopted"), where the cause still holds.

    Same attempt, same permit. Called in the transaction that has locked the new driver's row, alive, FOR KEY SHARE: no
    declaration of its death commits in between, and a later one finds these runs. Returns the new hold for each old.
    """
    if not holds:
        return {}
    moved = rows(
        driving.ADOPT_RUNS.format(cause=cause.predicate),
        {
            **_arrays(holds),
            **driver.identity(),
            "incarnation": driver.incarnation,
            "driver_name": driver.name,
            "lease_seconds": driver.lease_seconds,
            **(parameters or {}),
        },
    )
    return {(r["id"], r["held"]): (r["id"], r["epoch"]) for r in moved}


def read_open_attempts(attempts: Sequence[tuple[int, int]]) -> list[Row]:
    """Of these (run, attempt), the open ones, whoever drives them: id, attempt, epoch, driver, maker."""
    if not attempts:
        return []
    arrays = {"runs": [run for run, _ in attempts], "attempts": [number for _, number in attempts]}
    return rows(driving.READ_OPEN_ATTEMPTS, arrays)


def adopted_by_others(driver: Driver, attempts: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    """Of these (run, attempt), once this driver's, those that go on in the same attempt under another (rule R12)."""
    own = driver.kind.value, driver.id
    found = read_open_attempts(attempts)
    return {(r["id"], r["attempt"]) for r in found if (r["driver_kind"], r["driver_id"]) != own}


def give_back(driver: Driver, holds: Sequence[Hold], reason: str, *, drained: bool = False) -> list[Ended]:
    """The driver itself returns holds. Drained work burns no attempt (rule R14)."""
    return take_away(holds, DRAINED if drained else RETURNED, detail=reason, driver=driver)


def cancel_runs(
    runs: Sequence[int],
    *,
    actor: Actor,
    reason: str = "",
    tenant_id: int | None = None,
    cause: str = "asked",
) -> dict[int, RunState]:
    """Cancel (T5): queued runs end here; for the others it is a request that their driver answers.

    Returns the state of each run that was open. A run that is missing had ended, or belongs to another tenant, or the
    cause (of `CANCEL_CAUSES`) is not true of it. A passed run deadline is a cancel with another ending (rule A28).
    """
    if not runs:
        return {}
    overdue = cause == "run_deadline"
    parameters = {
        "runs": list(runs),
        "tenant_id": tenant_id,
        "actor": actor.name,
        "reason": reason[:MAX_DETAIL],
        "ending": (RunState.TIMED_OUT if overdue else RunState.CANCELLED).value,
        "reason_code": "run_deadline" if overdue else "cancelled",
    }
    with transaction.atomic():
        moved = rows(ending.CANCEL_RUNS.format(cause=ending.CANCEL_CAUSES[cause]), parameters)
        if not overdue:
            # A passed deadline is told by the run itself; what somebody asked for is told here as well.
            after = {r["id"]: {"state": r["state"]} for r in moved}
            record_each("cancel", "run", after, actor=actor, reason=reason)
        if moved:
            announce()
    return {r["id"]: RunState(r["state"]) for r in moved}


def requeue_runs(holds: Sequence[Hold], *, actor: Actor, reason: str) -> list[Ended]:
    """An operator takes runs from their drivers: a takeover, which the displaced driver learns at its next call.

    Raises:
        Conflict: under strict fencing. Until its driver learns of it the run would be executed without a permit.
    """
    if is_strict():
        raise Conflict(
            "Strict fencing is on: a run is not taken from a driver that may still execute it.",
            hint="Cancel it, and submit it again when it is confirmed stopped; drain or stop its driver; or wait: the "
            "runs of a silent driver come free when its window has passed.",
            code="fenced",
        )
    with transaction.atomic():
        taken = take_away(holds, OPERATOR, detail=f"{actor.name}: {reason}")
        after = {ended.run: {"state": ended.state.value} for ended in taken}
        record_each("requeue", "run", after, actor=actor, reason=reason)
    return taken
