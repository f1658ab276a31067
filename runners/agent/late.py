"""Output that could not be delivered before the end was: it follows in its window (rule Q8).

The end of an attempt matters more than its log, so a control plane that takes results and no output gets the result
after a minute. What is left of the log is tried on from here, beside whatever else the driver does, until the control
plane has it, or does not take it any more. Meanwhile it stays in the spool, where there is one: a later life of the
agent goes on with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runners.agent.assignment import RunKey
from runners.agent.backoff import Backoff
from runners.agent.clock import now
from runners.agent.control import Control, Superseded
from runners.agent.logs import LogBuffer
from runners.agent.loops import FOREVER, Loop

if TYPE_CHECKING:
    from runners.agent.events import OnEvent

# The control plane says itself when it is over. This is for one that never answers about a log.
MOST_SECONDS = 3600.0
MOST_BYTES = 256 << 20


@dataclass(slots=True)
class LateLog:
    """The rest of one log. `done` is called once: it was delivered, or nobody takes it any more."""

    key: RunKey
    attempt: int
    logs: LogBuffer
    done: Callable[[], None]
    since: float = field(default_factory=now)
    backoff: Backoff = field(default_factory=lambda: Backoff(1.0, 30.0))
    due: float = 0.0


class LateLogs:
    """Of one driver."""

    def __init__(self, control: Control, on_event: OnEvent) -> None:
        self._control = control
        self._on_event = on_event
        self._left: dict[RunKey, LateLog] = {}
        self._changed = threading.Condition()
        self.loop = Loop("late logs", self._tick, on_event, control.thread_ends)

    def __len__(self) -> int:
        return len(self._left)

    def take(self, late: LateLog) -> None:
        """Go on with this one. Above a bound on memory it is left to the spool and the next life, which is told."""
        with self._changed:
            waiting = sum(one.logs.waiting for one in self._left.values())
            if waiting + late.logs.waiting <= MOST_BYTES:
                self._left[late.key] = late
        self._tell(late, "log_late" if late.key in self._left else "log_left_behind", bytes=late.logs.waiting)
        self.loop.wake()

    def hurry(self) -> None:
        """Try all of them now: its owner is about to end."""
        with self._changed:
            for late in self._left.values():
                late.due = 0.0
        self.loop.wake()

    def wait_until_empty(self, seconds: float) -> bool:
        """True when nothing is left to be delivered."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._left, seconds)

    def _tick(self) -> float:
        with self._changed:
            left = list(self._left.values())
        for late in left:
            if now() >= late.due:
                self._try(late)
        with self._changed:
            return max(0.0, min((late.due for late in self._left.values()), default=now() + FOREVER) - now())

    def _try(self, late: LateLog) -> None:
        size = late.logs.waiting
        try:
            late.logs.flush(lambda offset, data: self._control.append_log(late.key, offset, data))
        except Superseded as error:
            self._end(late, "log_lost", bytes=late.logs.waiting, error=str(error))
        except Exception as error:  # noqa: BLE001 - an outage or a refusal by something in between: told, and tried on
            if now() - late.since > MOST_SECONDS:
                self._end(late, "log_lost", bytes=late.logs.waiting, error=repr(error))
                return
            self._tell(late, "log_still_late", bytes=late.logs.waiting, error=repr(error))
            late.due = now() + late.backoff.delay()
        else:
            self._end(late, "log_delivered_late", bytes=size)

    def _end(self, late: LateLog, name: str, **fields: object) -> None:
        with self._changed:
            self._left.pop(late.key, None)
        late.done()
        self._tell(late, name, **fields)
        with self._changed:
            self._changed.notify_all()

    def _tell(self, late: LateLog, name: str, **fields: object) -> None:
        self._on_event(name, run=late.key.run, epoch=late.key.epoch, attempt=late.attempt, **fields)
