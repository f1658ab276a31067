"""Who could take a run: said at submit, and the end of runs that asked for it when nobody can (rule Q10).

Admission itself never judges by this: a driver proves itself by its own row inside the admitting transaction.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from admission.driver_facts import MOST_DRIVERS, DriverFacts, read_driver_facts
from admission.spec import RunSpec
from admission.sql import ending, sweeping
from controlplane.core.conf import conf
from controlplane.core.loops import Progress
from controlplane.core.outages import held
from controlplane.core.sql import Row, rows
from controlplane.core.web_sign import web_is_away

BATCH = 500
MOST_SECONDS = 2.0
"""How old the drivers may be that a submit is judged by: a warning may lag, a burst of submits may not read them each
time."""


@dataclass(frozen=True, slots=True)
class Wants:
    """What a run asks of its driver."""

    tenant_id: int
    backend: str
    labels: Mapping[str, str]
    memory_mib: int
    cpu: float


def could_take(driver: DriverFacts, wants: Wants) -> bool:
    """Whether this driver, idle, would be given such a run."""
    return (
        driver.tenant_id in (None, wants.tenant_id)
        and (not wants.backend or wants.backend in driver.backends)
        and all(driver.labels.get(name) == value for name, value in wants.labels.items())
        and (not driver.memory_mib or wants.memory_mib <= driver.memory_mib)
        and (not driver.cpu or wants.cpu <= driver.cpu)
    )


class _Drivers:
    """The drivers as they were lately, read again at most every few seconds a process."""

    def __init__(self) -> None:
        self._at = float("-inf")
        self._found: list[DriverFacts] = []

    def read(self) -> list[DriverFacts]:
        if monotonic() - self._at > MOST_SECONDS:
            self._found = read_driver_facts()
            self._at = monotonic()
        return self._found

    def forget(self) -> None:
        """Read again at the next look."""
        self._at = float("-inf")


drivers_lately = _Drivers()


def warnings_for(tenant_id: int, specs: Sequence[RunSpec]) -> list[list[str]]:
    """For each specification what its submitter should know: that nobody enrolled could ever take it."""
    enrolled = [d for d in drivers_lately.read() if not d.gone]
    if len(enrolled) >= MOST_DRIVERS:
        # Not all were read: one of the others may.
        return [[] for _ in specs]
    known: dict[str, list[str]] = {}
    return [_remembered(known, _wants(tenant_id, spec), enrolled) for spec in specs]


def _remembered(known: dict[str, list[str]], wants: Wants, enrolled: Sequence[DriverFacts]) -> list[str]:
    key = repr(wants)
    if key not in known:
        taken = any(could_take(driver, wants) for driver in enrolled)
        known[key] = [] if taken else [_sentence(wants, enrolled)]
    return known[key]


def _wants(tenant_id: int, spec: RunSpec) -> Wants:
    return Wants(tenant_id, spec.backend or "", spec.labels, spec.resources.memory_mib, spec.resources.cpu)


def _sentence(wants: Wants, enrolled: Sequence[DriverFacts]) -> str:
    """The first demand that leaves nobody, in the order in which one would look."""
    if not enrolled:
        return "Nothing is enrolled that could take it: it waits until a replica or a runner is."
    demands: list[tuple[str, Callable[[DriverFacts], bool]]] = [
        ("serves this tenant", lambda d: d.tenant_id in (None, wants.tenant_id)),
        (f"offers the backend {wants.backend}", lambda d: not wants.backend or wants.backend in d.backends),
        (
            f"has the labels {', '.join(f'{n}={v}' for n, v in sorted(wants.labels.items()))}",
            lambda d: all(d.labels.get(name) == value for name, value in wants.labels.items()),
        ),
        (
            f"is as large as {wants.memory_mib} MiB and {wants.cpu:g} processors",
            lambda d: could_take(d, wants),
        ),
    ]
    left = list(enrolled)
    for what, holds in demands:
        left = [driver for driver in left if holds(driver)]
        if not left:
            return f"No enrolled driver could ever take it: none of {len(enrolled)} {what}. It waits until one does."
    return "No enrolled driver could ever take it."


def fail_unserved() -> Progress:
    """Runs that asked to fail when nobody can take them, and that nobody living could take for so long.

    A driver that is busy, paused or draining lives: it keeps its backlog alive. After an outage nobody was heard, and
    that says nothing about anybody: one full time is waited. While no web process lives no runner can be heard.
    """
    if web_is_away():
        return Progress({"no_runner": 0})
    settings = conf()
    if held("no_runner", gap=max(60.0, 4 * settings.sweep_interval_seconds), length=settings.no_runner_seconds):
        return Progress({"no_runner": 0})
    facts = read_driver_facts()
    if len(facts) >= MOST_DRIVERS:
        return Progress({"no_runner": 0, "too_many_drivers": True})
    silent = settings.no_runner_seconds
    heard = [d for d in facts if not d.gone and d.alive_seconds_ago is not None and d.alive_seconds_ago < silent]
    asked = rows(sweeping.READ_UNSERVED, {"limit": BATCH, "seconds": silent})
    lost = [row for row in asked if not any(could_take(driver, _of_row(row)) for driver in heard)]
    failed = _fail(lost)
    return Progress({"no_runner": failed}, more=failed >= BATCH)


def _of_row(row: Row) -> Wants:
    labels: Any = row["labels"]
    labels = json.loads(labels) if isinstance(labels, str) else labels
    return Wants(row["tenant_id"], row["backend"], labels, row["memory_mib"], row["cpu"])


def _fail(lost: Sequence[Row]) -> int:
    holds = [hold for row in lost for hold in zip(row["runs"], row["epochs"], strict=True)][:BATCH]
    if not holds:
        return 0
    detail = f"no living driver could take it for {conf().no_runner_seconds:g} s"
    parameters = {"runs": [run for run, _ in holds], "epochs": [epoch for _, epoch in holds], "detail": detail}
    return len(rows(ending.FAIL_UNSERVED, parameters))
