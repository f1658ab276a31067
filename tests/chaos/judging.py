"""What must hold afterwards, by the ledger, by the runs' own account, by the agents' and by the machine."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any

from admission.models import Attempt, Permit, Run
from admission.services.readings import read_highest_concurrency
from runners.services.logs import read_log, stored_digest
from tests import ledger
from tests.chaos.watching import read_docker_starts
from tests.chaos.work import Work
from tests.chaos.world import World
from tests.fencing.world import arguments_of, processes, until

ENDINGS = {"succeeded", "failed", "cancelled"}
Started = list[tuple[int, int, float]]


def open_runs() -> int:
    return Run.objects.filter(state__in=("queued", "admitted", "running")).count()


def assert_each_ended_exactly_once(world: World) -> dict[str, int]:
    """One ending, by its last attempt; what came before was interrupted or never started."""
    states = dict(Run.objects.filter(pk__in=world.works).values_list("pk", "state"))
    attempts: dict[int, list[Attempt]] = defaultdict(list)
    for attempt in Attempt.objects.filter(run__in=world.works).order_by("number"):
        attempts[attempt.run_id].append(attempt)
    for run, work in world.works.items():
        natural = "failed" if work.exit_code else "succeeded"
        assert states[run] in {natural, "cancelled"}, (run, states[run])
        endings = [attempt.ending for attempt in attempts[run]]
        # Cancelled while its agent was dead: what ended the attempt then is that its agent lost it.
        assert endings[-1] == states[run] or (states[run], endings[-1]) == ("cancelled", "interrupted"), (run, endings)
        assert not ENDINGS & set(endings[:-1]), (run, endings)
        assert all(attempt.released_at for attempt in attempts[run]), run
    return {**Counter(states.values()), "attempts": sum(map(len, attempts.values()))}


def executions(world: World) -> Started:
    """(run, attempt, when) of everything that was executed: by what wrote it itself, and by the daemon."""
    runs = {work.key: run for run, work in world.works.items()}
    lines = [line.split() for line in world.journal.read_text().splitlines()]
    found = [(runs[key], int(attempt), float(when)) for key, attempt, when in lines]
    events = world.folder / "docker-events"
    return found + (read_docker_starts(events) if events.exists() else [])


def assert_nothing_was_executed_twice(world: World, started: Started) -> None:
    """No attempt twice, nothing after the end, and what succeeded was executed under the attempt that says so."""
    twice = [key for key, times in Counter((run, attempt) for run, attempt, _ in started).items() if times > 1]
    assert not twice, twice
    rows = Run.objects.filter(pk__in=world.works, finished_at__isnull=False)
    ended = {row.pk: row for row in rows}
    late = [(run, attempt) for run, attempt, at in started if at > _ended_at(ended[run])]
    assert not late, late
    known = {(run, attempt) for run, attempt, _ in started}
    unseen = [row.pk for row in rows if row.state != "cancelled" and (row.pk, row.attempt) not in known]
    assert not unseen, unseen
    after = [(run, attempt) for run, attempt, _ in started if attempt > ended[run].attempt]
    assert not after, after


def _ended_at(run: Run) -> float:
    assert run.finished_at is not None
    return run.finished_at.timestamp()


def claims(world: World) -> Iterator[tuple[tuple[int, int], str]]:
    """Each (run, epoch) that an agent says it was given, and which agent."""
    for agent in world.agents:
        for event in agent.events():
            if event["event"] == "claimed":
                yield (event["run"], event["epoch"]), agent.name


def assert_nothing_was_offered_twice(world: World) -> int:
    given = list(claims(world))
    twice = [key for key, times in Counter(key for key, _ in given).items() if times > 1]
    assert not twice, [(key, name) for key, name in given if key in twice]
    return len(given)


def assert_no_byte_is_missing(world: World) -> int:
    """Of every run that finished, the stored log is what it wrote; of an attempt cut short, the beginning of that."""
    total = 0
    for attempt in Attempt.objects.filter(run__in=world.works).order_by("run", "number").iterator():
        work = world.works[attempt.run_id]
        digest = stored_digest(attempt.run_id, attempt.number)
        assert digest is not None, "cut"
        total += digest[0]
        written = work.output(attempt.number)
        where = (attempt.run_id, attempt.number, attempt.ending, digest[0], len(written))
        if attempt.ending in {"succeeded", "failed"}:
            assert digest[0] == len(written), where
        assert digest == (digest[0], _digest(written[: digest[0]])), where
        assert read_log(attempt.run_id, attempt=attempt.number, offset=digest[0]).missing == 0, where
    return total


def assert_quotas_held(world: World) -> list[int]:
    """By the exact times of all attempts."""
    peaks = [read_highest_concurrency(tenant.pk) for tenant in world.tenants]
    assert all(peak <= quota for peak, quota in zip(peaks, world.plan.quotas, strict=True)), peaks
    return peaks


def assert_nothing_is_left(world: World) -> None:
    """No permit, no process and no container of a run; whoever ended took with it what it executed."""
    ledger.assert_conserved()
    assert not Permit.objects.exists()
    mark = world.mark.encode()
    alive = partial(_running, mark)
    assert world.containers() == {}
    until(lambda: not alive(), lambda: f"still executed: {alive()}")


def figures(world: World) -> dict[str, Any]:
    """What the agents lived through."""
    events = Counter(event["event"] for agent in world.agents for event in agent.events())
    kept = ("control_unavailable", "swept", "returned", "superseded", "log_undelivered", "driver_error")
    interrupted = (
        Attempt.objects.filter(run__in=world.works).exclude(ending__in=ENDINGS).values_list("reason", flat=True)
    )
    return {"events": {name: events[name] for name in kept}, "cut_short": dict(Counter(interrupted))}


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _running(mark: bytes) -> list[bytes]:
    found = [arguments_of(process) for process in processes()]
    return [b" ".join(a)[:200] for a in found if any(mark in one for one in a)]


def unfinished(world: World) -> dict[int, tuple[str, Work]]:
    """For a message: what has not ended yet."""
    rows = Run.objects.filter(pk__in=world.works, finished_at=None).order_by("pk")[:5]
    return {row.pk: (row.state, world.works[row.pk]) for row in rows}
