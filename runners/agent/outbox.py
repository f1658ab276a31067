"""Ends on their way to the control plane: many in one call, repeated until answered, never dropped."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runners.agent.assignment import Result, RunKey, Verdict
from runners.agent.control import Control, ControlUnavailable
from runners.agent.loops import FOREVER, Loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from runners.agent.events import OnEvent
    from runners.agent.holds import Hold

MOST_RESULTS = 100


@dataclass(frozen=True, slots=True)
class _Entry:
    hold: Hold
    result: Result | None
    reason: str = ""


class Outbox:
    """Settles results and gives back runs. `done` is called once for each, after the answer."""

    def __init__(self, control: Control, on_event: OnEvent, done: Callable[[Hold], None]) -> None:
        self._control = control
        self._on_event = on_event
        self._done = done
        self._entries: dict[RunKey, _Entry] = {}
        self._most = MOST_RESULTS
        self._lock = threading.Lock()
        self.loop = Loop("outbox", self._tick, on_event, control.thread_ends)

    def settle(self, hold: Hold, result: Result) -> None:
        """Report this end."""
        self._put(_Entry(hold, result))

    def give_back(self, hold: Hold, reason: str) -> None:
        """Return this run: nothing of it is left here, and the control plane decides what becomes of it."""
        self._put(_Entry(hold, None, reason))

    def _put(self, entry: _Entry) -> None:
        entry.hold.ended()
        with self._lock:
            self._entries[entry.hold.key] = entry
        self.loop.wake()

    def _tick(self) -> float:
        with self._lock:
            batch = list(self._entries.values())[: self._most]
        if not batch:
            return FOREVER
        try:
            self._send(batch)
        except ControlUnavailable:
            raise
        except Exception:
            # One result that breaks the call must not hold up the others: singly from now on, this one last.
            self._most = 1
            self._postpone(batch)
            raise
        self._most = min(MOST_RESULTS, self._most * 2)
        return 0.0

    def _postpone(self, batch: list[_Entry]) -> None:
        with self._lock:
            for entry in batch:
                self._entries[entry.hold.key] = self._entries.pop(entry.hold.key)

    def _send(self, batch: list[_Entry]) -> None:
        self._settle([entry for entry in batch if entry.result is not None])
        for reason in dict.fromkeys(entry.reason for entry in batch if entry.result is None):
            entries = [entry for entry in batch if entry.result is None and entry.reason == reason]
            self._control.give_back([entry.hold.key for entry in entries], reason)
            for entry in entries:
                self._finish(entry, "given_back", reason=reason)

    def _settle(self, entries: list[_Entry]) -> None:
        results = [entry.result for entry in entries if entry.result is not None]
        if not results:
            return
        verdicts = self._control.settle(results)
        for entry, result in zip(entries, results, strict=True):
            verdict = verdicts.get(result.key, Verdict.SUPERSEDED)
            entry.hold.late = verdict is not Verdict.SUPERSEDED and entry.hold.logs.waiting > 0
            name = "superseded" if verdict is Verdict.SUPERSEDED else "settled"
            self._finish(entry, name, ending=result.ending, reason=result.reason, exit_code=result.exit_code)

    def _finish(self, entry: _Entry, name: str, **fields: object) -> None:
        with self._lock:
            self._entries.pop(entry.hold.key, None)
        self._done(entry.hold)
        self._on_event(name, run=entry.hold.key.run, epoch=entry.hold.key.epoch, **fields)
