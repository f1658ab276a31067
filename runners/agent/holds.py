"""What a driver holds: one entry for each (run, epoch), from the claim until the control plane knows its end."""

from __future__ import annotations

import threading
from enum import StrEnum
from typing import TYPE_CHECKING

from runners.agent.clock import now
from runners.agent.logs import LogBuffer
from runners.agent.registry import hidden_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from runners.agent.artifacts import Kept
    from runners.agent.assignment import Assignment, RunKey
    from runners.agent.executors.base import Execution


class Phase(StrEnum):
    """Where an entry stands. Only ever forward."""

    CLAIMED = "claimed"
    ACCEPTED = "accepted"
    RUNNING = "running"
    REPORTING = "reporting"


class Hold:
    """One assignment and its execution. The lock makes 'stop' and 'the execution is there now' meet."""

    def __init__(self, assignment: Assignment, wake_logs: Callable[[], None]) -> None:
        self.assignment = assignment
        self.key: RunKey = assignment.key
        self.phase = Phase.CLAIMED
        self.prepared = False
        """What stands before its start is done."""
        self.since = now()
        self.place_labels: Mapping[str, str] | None = None
        """What names its place among the containers that may exist, from the first question for one."""
        self.placed = False
        self.deadline: float | None = None
        self.asked: float | None = None
        """Before the start was first asked for: if a reply was lost, that question is the one that counts."""
        self.superseded = False
        self.stop_reason = ""
        self.maker: Mapping[str, str] | None = None
        """By these labels is found what a dead driver started for it; None: we make it ourselves."""
        self._let_go = False
        hidden = [*assignment.secrets.values(), *hidden_parts(assignment.registry), assignment.job_token]
        self.logs = LogBuffer(hidden, wake=wake_logs)
        self.late = False
        """Its end is known to the control plane, and not all of its log."""
        self.kept: list[Kept] = []
        """What it left and is to be brought to the control plane, in `place` or in the spool."""
        self.place: Path | None = None
        self._execution: Execution | None = None
        self._lock = threading.Lock()

    def attach(self, execution: Execution) -> None:
        """The execution is there; a stop that came before it is passed on."""
        with self._lock:
            self._execution = execution
            self.phase = Phase.RUNNING
            reason, let_go = self.stop_reason, self._let_go
        if let_go:
            execution.let_go()
        elif reason:
            execution.stop(reason)

    def stop(self, reason: str, *, superseded: bool = False) -> bool:
        """Stop it, now or as soon as it is there; False when it had ended already. The first reason stays."""
        with self._lock:
            if self.phase is Phase.REPORTING:
                return False
            self.superseded = self.superseded or superseded
            self.stop_reason = self.stop_reason or reason
            execution = self._execution
        if execution is not None:
            execution.stop(self.stop_reason)
        return True

    def let_go(self) -> None:
        """Another driver goes on with it: nothing of it is stopped, removed or reported from here on."""
        with self._lock:
            self.superseded = self._let_go = True
            self.stop_reason = self.stop_reason or "adopted"
            execution = self._execution
        self.logs.discard()
        if execution is not None:
            execution.let_go()

    @property
    def moved_on(self) -> bool:
        """It was told that its run has moved on, and does what follows."""
        return self.superseded and bool(self.stop_reason)

    def ended(self) -> None:
        """Its container is confirmed gone, or was never made: from here on a stop means nothing."""
        with self._lock:
            self.phase = Phase.REPORTING


class Holds:
    """All entries of a driver."""

    def __init__(self) -> None:
        self._entries: dict[RunKey, Hold] = {}
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, hold: Hold) -> bool:
        """False when that key is held already: a claim's answer may come twice."""
        with self._changed:
            if hold.key in self._entries:
                return False
            self._entries[hold.key] = hold
            return True

    def get(self, key: RunKey) -> Hold | None:
        """The entry of a key."""
        return self._entries.get(key)

    def all(self, phase: Phase | None = None) -> list[Hold]:
        """A snapshot, in the order of arrival."""
        with self._changed:
            return [hold for hold in self._entries.values() if phase is None or hold.phase is phase]

    def discard(self, hold: Hold) -> None:
        """Its slot is free."""
        with self._changed:
            self._entries.pop(hold.key, None)
            self._changed.notify_all()

    def wait_until_empty(self, seconds: float | None) -> bool:
        """True when nothing is held any more."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._entries, seconds)
