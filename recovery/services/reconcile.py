"""Reconciliation: what a dead replica held is adopted, settled, requeued, interrupted or owed, by one survivor.

Runs at boot and every minute on every replica, not only on a leader: a claim per dead incarnation makes it exclusive.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from django.db import DatabaseError, transaction

from admission.services.probes import forget_probe
from admission.services.runs import Cause, take_away
from admission.states import DriverKind
from controlplane.core.conf import conf
from controlplane.core.fencing import is_strict
from controlplane.core.sql import one, rows
from recovery import sql
from recovery.models import Outcome
from recovery.services import debts, holding
from recovery.services.deaths import declare_and_claim
from recovery.services.orphans import Adopt, Dead, Finding, LeftoversRemain, Orphan, Sweep
from recovery.services.reporting import Journal, Report
from recovery.services.situation import Silent, Situation, read_situation
from runners.agent.assignment import RunKey

log = logging.getLogger(__name__)

LOCAL_FIRST_TICKS = 2
"""For so long past the window a dead replica is left to a living one of its machine, which can see what it left."""

DRIVER_DEAD = Cause("driver_dead", sql.DRIVER_DEAD)
DRIVER_DEAD_FENCED = Cause("driver_dead", sql.DRIVER_DEAD_FENCED)
DRIVER_ABSENT = Cause("driver_absent", sql.DRIVER_ABSENT)
DEBT_DUE = Cause("driver_dead", sql.DEBT_DUE)


@dataclass(frozen=True, slots=True)
class Hands:
    """Who reconciles, and what it can do on its machine. `manage.py recover` has neither hand: it never drives."""

    claimant: str
    journal: Journal
    machine: str = ""
    adopt: Adopt | None = None
    sweep: Sweep | None = None


def reconcile(
    *,
    claimant: str,
    by: str,
    self_id: int | None = None,
    machine: str = "",
    adopt: Adopt | None = None,
    sweep: Sweep | None = None,
    dry_run: bool = False,
) -> Report:
    """One pass. An unreadable live set means that everyone may be alive: nothing is touched, `error` says so (R4)."""
    report = Report()
    try:
        situation = read_situation(self_id)
    except DatabaseError as error:
        report.error = f"the heartbeats cannot be read, so everyone may be alive: nothing was reclaimed ({error})"
        log.warning("recovery.unreadable", extra={"error": str(error)})
        return report
    hands = Hands(claimant, Journal(by, report), machine, adopt, sweep)
    if dry_run:
        _say(situation, hands)
    else:
        _act(situation, hands)
    return report


def _act(situation: Situation, hands: Hands) -> None:
    report = hands.journal.report
    held = _hold(situation, hands)
    for silent in situation.dead:
        if silent.dead.id not in held and _claim(silent, situation, hands):
            _reconcile_one(silent, hands)
    if situation.ownerless:
        _take_ownerless(hands)
    if situation.moved:
        debts.settle_moved(hands.journal)
    if situation.due:
        _pay(hands)
    if situation.expired:
        report.expired_claims = len(rows(sql.EXPIRE_CLAIMS, {"claim_ttl_seconds": conf().recovery_claim_ttl_seconds}))


def _say(situation: Situation, hands: Hands) -> None:
    """A dry run: the same judgement, and nothing is written."""
    new = holding.judge(situation)
    for silent in situation.dead:
        why = new.get(silent.dead.id) or _why_not(silent, situation, hands) or "dry run: it would be reconciled"
        hands.journal.report.left_alone.append({"replica": silent.dead.name, "why": why})
    for found, what in (
        (situation.ownerless, "runs without a replica row"),
        (situation.due, "debts whose time has come"),
        (situation.expired, "claims that ran out"),
    ):
        if found:
            hands.journal.report.left_alone.append({"replica": "", "why": f"dry run: there are {what}"})


def _hold(situation: Situation, hands: Hands) -> set[int]:
    """Hold those that may have been cut off only; returns all that are held now, or perhaps came back just then."""
    found = holding.judge(situation)
    written = holding.hold(found)
    for silent in situation.dead:
        if (why := written.get(silent.dead.id)) is not None:
            log.warning("recovery.held", extra={"silent": silent.dead.name, "why": why})
            hands.journal.deferred(silent.dead.name, why)
    return set(found)


def _why_not(silent: Silent, situation: Situation, hands: Hands) -> str:
    """Why this one is not ours to claim now; empty: it is."""
    if holding.is_held(silent):
        return f"held: {silent.held_why}"
    if silent.claimant is not None and silent.claimant != hands.claimant:
        return f"claimed by {silent.claimant}"
    if silent.claimant is not None or silent.declared:
        return ""
    if holding.is_unsure(situation):
        return "nobody else is heard, and this replica came a moment ago: it looks again at the next tick"
    late = silent.silent_seconds - conf().replica_stale_seconds
    if silent.local and silent.dead.machine != hands.machine and late < LOCAL_FIRST_TICKS * _tick():
        return "left to a living replica on its machine, which can see what it left there"
    return ""


def _tick() -> float:
    return conf().recovery_interval_seconds


def _claim(silent: Silent, situation: Situation, hands: Hands) -> bool:
    if why := _why_not(silent, situation, hands):
        if holding.is_held(silent):
            hands.journal.report.count(Outcome.DEFERRED)
        hands.journal.left_alone(silent.dead.name, why)
        return False
    if silent.claimant == hands.claimant:
        return True
    if declare_and_claim(silent.dead.id, claimant=hands.claimant, proof="stale"):
        return True
    hands.journal.left_alone(silent.dead.name, "claimed by another, or alive after all")
    return False


def _reconcile_one(silent: Silent, hands: Hands) -> None:
    if is_strict() and not silent.stale:
        # Not a debt: it ends by itself within the window, and the claim stays ours meanwhile.
        hands.journal.report.count(Outcome.DEFERRED)
        hands.journal.left_alone(silent.dead.name, "strict fencing: its runs wait until its silence lasted a window")
        return
    dead, cause = silent.dead, DRIVER_DEAD_FENCED if is_strict() else DRIVER_DEAD
    found: set[RunKey] = set()
    if hands.adopt is not None:
        for orphans in _orphans(dead, hands):
            found |= _ask(hands.adopt, silent, orphans, hands)
    leftovers = _sweep(dead, hands)
    for orphans in _orphans(dead, hands):
        rest = [orphan for orphan in orphans if orphan.key not in found]
        if leftovers:
            debts.open_debts(dead, silent.silent_at, dict.fromkeys(rest, leftovers), hands.journal)
        else:
            _take(rest, cause, dead.name, hands.journal)
    _finish(dead, hands)


def _sweep(dead: Dead, hands: Hands) -> str:
    """Why what it left could not be confirmed gone; empty: it is gone, or cannot be seen from here."""
    try:
        if hands.sweep is not None:
            hands.sweep(dead)
    except LeftoversRemain as left:
        log.warning("recovery.leftovers", extra={"dead": dead.name, "error": str(left)})
        return str(left)
    return ""


def _orphans(dead: Dead, hands: Hands) -> Iterator[list[Orphan]]:
    """Batches, for as long as the claim is ours: it is renewed before each."""
    after = 0
    while True:
        if one(sql.RENEW_CLAIM, {"replica": dead.id, "claimant": hands.claimant}) is None:
            hands.journal.left_alone(dead.name, "the claim went to another")
            return
        limit = conf().recovery_batch_size
        found = rows(sql.READ_ORPHANS, {"replica": dead.id, "after": after, "limit": limit})
        if not found:
            return
        after = found[-1]["id"]
        yield [Orphan(row["id"], row["epoch"], row["attempt"], row["state"]) for row in found]


def _ask(adopt: Adopt, silent: Silent, orphans: Sequence[Orphan], hands: Hands) -> set[RunKey]:
    """Let this machine's replica take up what goes on here; what it could not decide becomes owed."""
    found = adopt(silent.dead, orphans)
    adopted, deferred = _split(found, {orphan.key: orphan for orphan in orphans})
    hands.journal.note(Outcome.ADOPTED, silent.dead.name, adopted.items())
    debts.open_debts(silent.dead, silent.silent_at, deferred, hands.journal)
    return set(found)


def _split(
    found: Mapping[RunKey, Finding], known: Mapping[RunKey, Orphan]
) -> tuple[dict[Orphan, str], dict[Orphan, str]]:
    adopted = {known[key]: f.why for key, f in found.items() if f.outcome == "adopted"}
    return adopted, {known[key]: f.why for key, f in found.items() if f.outcome == "deferred"}


def _finish(dead: Dead, hands: Hands) -> None:
    """T13: the heartbeat row last, and only if each of its runs is settled or stands in a debt."""
    with transaction.atomic():
        ours = one(sql.DROP_CLAIM, {"replica": dead.id, "claimant": hands.claimant}) is not None
        finished = ours and one(sql.FINISH, {"replica": dead.id}) is not None
        if finished:
            forget_probe(DriverKind.REPLICA, dead.id)
    if finished:
        hands.journal.report.finished.append(dead.name)


def _take_ownerless(hands: Hands) -> None:
    """Runs whose replica has no row. Under strict fencing they wait for a window: its last beat is unknown."""
    after = 0
    while found := rows(sql.READ_OWNERLESS, {"after": after, "limit": conf().recovery_batch_size}):
        after = found[-1]["id"]
        if not is_strict():
            orphans = [Orphan(row["id"], row["epoch"], row["attempt"], row["state"]) for row in found]
            _take(orphans, DRIVER_ABSENT, "(no replica row)", hands.journal)
            continue
        for row in found:
            orphan = Orphan(row["id"], row["epoch"], row["attempt"], row["state"])
            name, incarnation = row["driver_name"], str(row["driver_incarnation"])
            gone = Dead(row["driver_id"], name, incarnation, "", "", 0, 0, "")
            debts.open_debts(gone, None, {orphan: "strict fencing: when it was last heard is unknown"}, hands.journal)


def _pay(hands: Hands) -> None:
    """Look at the debts that are due: the whole of it again, adoption and sweep included."""
    due = debts.take_due(hands.machine)
    for dead in dict.fromkeys(debt.dead for debt in due):
        _pay_those([debt for debt in due if debt.dead == dead], dead, hands)


def _pay_those(due: Sequence[debts.Due], dead: Dead, hands: Hands) -> None:
    known = {debt.orphan.key: debt for debt in due}
    found = hands.adopt(dead, [debt.orphan for debt in due]) if hands.adopt is not None else {}
    adopted, undecided = _split(found, {key: debt.orphan for key, debt in known.items()})
    hands.journal.note(Outcome.ADOPTED, dead.name, adopted.items())
    reasons = {known[orphan.key]: why for orphan, why in undecided.items()}
    rest = [debt.orphan for key, debt in known.items() if key not in found]
    leftovers = _sweep(dead, hands)
    taken = {} if leftovers else _take(rest, DEBT_DUE, dead.name, hands.journal)
    why = leftovers or "its driver may live after all, or strict fencing still protects it"
    reasons |= {known[orphan.key]: why for orphan in rest if orphan not in taken}
    debts.keep_debts(reasons, hands.journal)
    for orphan, outcome in {**dict.fromkeys(adopted, Outcome.ADOPTED), **taken}.items():
        debts.close_debts(outcome, [known[orphan.key].id])


def _take(orphans: Sequence[Orphan], cause: Cause, replica: str, journal: Journal) -> dict[Orphan, Outcome]:
    """One bounded transaction: the runs, their permits, and the rows that say so. What became of each that moved."""
    if not orphans:
        return {}
    window = conf().replica_stale_seconds
    parameters = {"stale_seconds": window, "window_seconds": window if is_strict() else 0.0}
    known = {orphan.run: orphan for orphan in orphans}
    with transaction.atomic():
        holds = [(orphan.run, orphan.epoch) for orphan in orphans]
        taken = take_away(holds, cause, detail=f"replica {replica} died", parameters=parameters)
        became = {known[ended.run]: _outcome(ended.state) for ended in taken}
        settled = _settled([orphan for orphan in orphans if orphan not in became])
        for outcome in dict.fromkeys(became.values()):
            what = f"{cause.name}: its attempt ended with its driver"
            journal.note(outcome, replica, [(orphan, what) for orphan, was in became.items() if was is outcome])
        journal.note(Outcome.ALREADY_SETTLED, replica, settled)
    return became | {orphan: Outcome.ALREADY_SETTLED for orphan, _ in settled}


def _outcome(state: str) -> Outcome:
    return Outcome.REQUEUED if state == "queued" else Outcome(state)


def _settled(orphans: Sequence[Orphan]) -> list[tuple[Orphan, str]]:
    """Those that ended or moved on between the look and the act."""
    if not orphans:
        return []
    known = {orphan.run: orphan for orphan in orphans}
    found = rows(sql.READ_MOVED, {"runs": list(known), "epochs": [orphan.epoch for orphan in orphans]})
    return [(known[row["id"]], f"it was {row['state']} by then") for row in found]
