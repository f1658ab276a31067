"""What stands before a start, such as an image pull, done and reported before the start is asked for (rule Q5).

A run that is prepared is still only claimed: its own time has not begun, and it may be taken back at no cost. While
its image is being pulled the control plane is told so, or it would take the run for one that nobody starts.
"""

from __future__ import annotations

import threading
import traceback
from typing import TYPE_CHECKING

from runners.agent.assignment import Ending, Result
from runners.agent.clock import now
from runners.agent.events import OnEvent
from runners.agent.executors.base import Executor, ExecutorError
from runners.agent.holds import Hold, Phase
from runners.agent.loops import FOREVER, Loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from runners.agent.assignment import RunKey, Verdict
    from runners.agent.control import Control

REPORT_SECONDS = 10.0
"""Between two reports of a pull: a fraction of the start deadline."""


class Preparations:
    """Of one driver. `settle` reports a run that cannot be prepared; `ready` is called when another one may start."""

    def __init__(  # noqa: PLR0917 - made in one place, by the driver
        self,
        control: Control,
        executor: Executor,
        settle: Callable[[Hold, Result], None],
        apply: Callable[[RunKey, Verdict], None],
        ready: Callable[[], None],
        on_event: OnEvent,
    ) -> None:
        self._control = control
        self._executor = executor
        self._settle = settle
        self._apply = apply
        self._ready = ready
        self._on_event = on_event
        self._under_way: set[Hold] = set()
        self._pulling: set[Hold] = set()
        self._lock = threading.Lock()
        self.loop = Loop("pulls", self._report, on_event, control.thread_ends)

    def is_ready(self, hold: Hold) -> bool:
        """Whether its start may be asked for; if not, what stands before it is begun, once."""
        with self._lock:
            if hold.prepared or hold in self._under_way:
                return hold.prepared
            if self._executor.prepared(hold.assignment):
                hold.prepared = True
                return True
            self._under_way.add(hold)
        title = f"prepare-{hold.key.run}-{hold.key.epoch}"
        threading.Thread(target=self._prepare, args=(hold,), name=title, daemon=True).start()
        return False

    def _prepare(self, hold: Hold) -> None:
        try:
            self._executor.prepare(hold.assignment, lambda text: self._progress(hold, text))
        except ExecutorError as error:
            self._fail(hold, error.reason, str(error))
        except Exception as error:  # noqa: BLE001 - told with its stack; the run must not wait for ever
            self._tell(hold, "driver_error", error=repr(error), stack=traceback.format_exc())
            self._fail(hold, "executor_error", f"the driver failed: {error!r}")
        else:
            # The time it may wait for a place begins now: its start deadline was moved on as well.
            hold.since = now()
            hold.prepared = True
        finally:
            with self._lock:
                self._under_way.discard(hold)
                self._pulling.discard(hold)
        self._ready()

    def _fail(self, hold: Hold, reason: str, detail: str) -> None:
        # Turned down meanwhile: cancelled, superseded or given back, and answered so.
        if hold.phase is Phase.CLAIMED and not hold.stop_reason:
            detail = hold.logs.hide(detail)
            self._settle(hold, Result(hold.key.run, hold.key.epoch, Ending.FAILED, reason, detail))

    def _progress(self, hold: Hold, text: str) -> None:
        with self._lock:
            first = hold not in self._pulling
            self._pulling.add(hold)
        if first:
            self._tell(hold, "pulling", image=hold.assignment.spec.image, status=text)
            self.loop.wake()

    def _report(self) -> float:
        with self._lock:
            pulling = [hold.key for hold in self._pulling if hold.phase is Phase.CLAIMED]
        if not pulling:
            return FOREVER
        for key, verdict in self._control.pulling(pulling).items():
            self._apply(key, verdict)
        return REPORT_SECONDS

    def _tell(self, hold: Hold, name: str, **fields: object) -> None:
        self._on_event(name, run=hold.key.run, epoch=hold.key.epoch, attempt=hold.assignment.attempt, **fields)
