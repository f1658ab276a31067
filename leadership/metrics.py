"""What leadership says of itself."""

from __future__ import annotations

from collections.abc import Iterator

from controlplane.core.metrics import Metric, Value, gauge, gauges
from leadership.selectors import ALARM_CODES, LoopState, read_alarms, read_leases, read_loops


def collect() -> Iterator[Metric]:
    """Three statements."""
    leases = read_leases()
    yield gauges(
        "leader", "1 while somebody leads, by the database's clock.", "role", [(r.role, r.led) for r in leases]
    )
    yield gauges("leader_term", "Grows whenever the lease is won.", "role", [(r.role, r.term) for r in leases])
    yield gauges(
        "leader_lease_seconds",
        "Left of the lease; 0 while nobody leads.",
        "role",
        [(r.role, max(0.0, r.seconds_left) if r.led else 0.0) for r in leases],
    )
    found = [alarm.code for alarm in read_alarms()]
    yield gauges(
        "alarms", "What no process can put right by itself.", "code", {code: found.count(code) for code in ALARM_CODES}
    )
    yield from _loops(read_loops())


def _loops(loops: list[LoopState]) -> Iterator[Metric]:
    ran = [loop for loop in loops if loop.age_seconds is not None]
    yield Metric(
        "loop_age_seconds",
        "Since the newest run of a loop was due (leader) or was done (local).",
        tuple(Value(loop.age_seconds or 0.0, {"loop": loop.loop, "gate": loop.gate}) for loop in ran),
        ("loop", "gate"),
    )
    yield gauges(
        "loop_period_seconds", "Between two runs of a loop.", "loop", [(each.loop, each.seconds) for each in loops]
    )
    yield gauges(
        "loop_failed", "1 where the newest run of a loop failed.", "loop", [(r.loop, r.state == "failed") for r in ran]
    )
    yield gauge("loops", "Declared loops of the running fleet.", len(loops))
