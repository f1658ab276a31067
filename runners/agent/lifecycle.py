"""The life of one accepted run, in a thread of its own: make, wait, remove with proof, deliver the log, report."""

from __future__ import annotations

import functools
import threading
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING

from runners.agent.assignment import Ending, Result
from runners.agent.backoff import Backoff
from runners.agent.clock import now
from runners.agent.control import Control, ControlUnavailable, Superseded
from runners.agent.executors.base import Execution, Executor, ExecutorError, Exit
from runners.agent.keeping import Keeping, answers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from runners.agent.events import OnEvent
    from runners.agent.fence import Fence
    from runners.agent.holds import Hold
    from runners.agent.outbox import Outbox

LOG_PATIENCE_SECONDS = 60.0
SHUTDOWN = "shutdown"
# Ends that say nothing about the run: the control plane decides between another attempt and an interruption.
_NOT_ITS_OWN = {SHUTDOWN, "lost", "fenced", "adopted", "no_slot"}
# Ends that look like the run's own and may be the watchdog's doing.
_ITS_OWN = {"", "oom", "executor_error"}
_ENDINGS = {"cancelled": Ending.CANCELLED, "timeout": Ending.TIMED_OUT}


class NotStarted(ExecutorError):
    """Stopped or out of time before anything was executed."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def nothing(hold: Hold) -> None:
    """Where no places are counted, none is given back."""


class Lifecycle:
    """What every run of a driver goes through.

    `forget` drops a hold of which nothing is to be reported, `displaced` judges one whose run has moved on, `unplace`
    gives back a place that was not entered.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - made in one place, by the driver
        self,
        control: Control,
        executor: Executor,
        outbox: Outbox,
        forget: Callable[[Hold], None],
        on_event: OnEvent,
        displaced: Callable[[Hold], None],
        fence: Fence | None = None,
        unplace: Callable[[Hold], None] = nothing,
        keeping: Keeping | None = None,
    ) -> None:
        self._keeping = keeping or Keeping(control, on_event)
        self._displaced = displaced
        self._control = control
        self._executor = executor
        self._outbox = outbox
        self._forget = forget
        self._on_event = on_event
        self._fence = fence
        self._unplace = unplace

    def begin(self, hold: Hold, labels: Mapping[str, str]) -> None:
        """Start the thread."""
        name = f"run-{hold.key.run}-{hold.key.epoch}"
        threading.Thread(target=self._thread, args=(hold, labels), name=name, daemon=True).start()

    def _thread(self, hold: Hold, labels: Mapping[str, str]) -> None:
        try:
            self._live(hold, labels)
        finally:
            self._control.thread_ends()

    def _live(self, hold: Hold, labels: Mapping[str, str]) -> None:
        began = now()
        try:
            end = self._execute(hold, labels)
        except ExecutorError as error:
            end = Exit(None, error.reason, str(error))
        except Exception as error:  # noqa: BLE001 - told with its stack; then the slot is proved empty before it is freed
            self._tell(hold, "driver_error", error=repr(error), stack=traceback.format_exc())
            self._until_confirmed(hold, lambda: self._executor.sweep(hold.maker or labels))
            end = Exit(None, "executor_error", f"the driver failed: {error!r}")
        self._unplace(hold)
        end = self._unfenced(hold, end, began)
        end = replace(end, detail=hold.logs.hide(end.detail))
        self._tell(hold, "ended", code=end.code, reason=end.reason, detail=end.detail)
        hold.logs.close()
        result = None if end.reason in _NOT_ITS_OWN else result_of(hold, end)
        self._keeping.ended(hold, result)
        self._keeping.upload(hold)
        self._deliver_log(hold)
        self._report(hold, end, result)

    def _unfenced(self, hold: Hold, end: Exit, began: float) -> Exit:
        """Nothing of it is left here. What the watchdog stopped did not fail by itself: it is lost, not failed."""
        if self._fence is None:
            return end
        fenced = self._fence.passed_since(began)
        self._fence.forget(hold.key)
        if fenced and end.reason in _ITS_OWN and (end.code != 0 or end.reason):
            return Exit(end.code, "lost", f"the fence was past while it ran; as it ended: {end.detail or end.code}")
        return end

    def _execute(self, hold: Hold, labels: Mapping[str, str]) -> Exit:
        execution = self._made(hold, labels)
        hold.attach(execution)
        self._tell(hold, "running")
        end = self._wait(hold, execution)
        self._keeping.collect(hold, execution, end)
        self._until_confirmed(hold, execution.remove)
        return end

    def _ask(self, hold: Hold) -> None:
        """Whether it may still be started: its deadline is never reset, and includes every wait (rule P13)."""
        if hold.stop_reason:
            raise NotStarted(hold.stop_reason, f"run {hold.key.run} was stopped before it was started")
        if hold.deadline is not None and now() >= hold.deadline:
            raise NotStarted("timeout", f"the time of run {hold.key.run} was over before it could be started")
        if self._fence is not None:
            self._fence.ask(hold.key)

    def _made(self, hold: Hold, labels: Mapping[str, str]) -> Execution:
        if hold.maker is not None:
            return self._executor.adopt(hold.assignment, hold.logs.write, hold.maker)
        # Once before anything is made, and once more by the executor before it starts what it made.
        may_start = functools.partial(self._ask, hold)
        may_start()
        return self._executor.start(hold.assignment, hold.logs.write, labels, may_start)

    def _wait(self, hold: Hold, execution: Execution) -> Exit:
        try:
            return execution.wait(hold.deadline)
        except ExecutorError as error:
            return Exit(None, error.reason, str(error))
        except Exception as error:  # noqa: BLE001 - told with its stack; what was made must be removed all the same
            self._tell(hold, "driver_error", error=repr(error), stack=traceback.format_exc())
            return Exit(None, "executor_error", f"the driver failed: {error!r}")

    def _until_confirmed(self, hold: Hold, remove: Callable[[], object]) -> None:
        """Never settled before: the permit stands for what may still be running. Keeps the slot meanwhile."""
        backoff = Backoff(0.5, 30.0)
        pause = threading.Event()
        while True:
            try:
                remove()
            except Exception as error:  # noqa: BLE001 - whatever it is, nothing was confirmed
                self._tell(hold, "remove_failed", error=str(error) or repr(error))
                pause.wait(backoff.delay())
            else:
                return

    def flush(self, hold: Hold) -> None:
        """Send the log that waits. A run that moved on is stopped, its log dropped."""
        try:
            hold.logs.flush(lambda offset, data: self._control.append_log(hold.key, offset, data))
        except Superseded:
            hold.logs.discard()
            self._displaced(hold)

    def _deliver_log(self, hold: Hold) -> None:
        """The last of the log goes before the result; a control plane that takes no logs may not hold that up long."""
        until = now() + LOG_PATIENCE_SECONDS
        backoff = Backoff()
        pause = threading.Event()
        while hold.logs.waiting and not hold.superseded:
            try:
                self.flush(hold)
            except ControlUnavailable as error:
                # As long as it is away altogether nothing is given up: the result could not be told either.
                if now() >= until and answers(self._control, hold):
                    self._tell(hold, "log_undelivered", bytes=hold.logs.waiting, error=str(error))
                    return
                pause.wait(backoff.delay())
            except Exception as error:  # noqa: BLE001 - told with its stack; the result matters more than its log
                self._tell(
                    hold, "log_undelivered", bytes=hold.logs.waiting, error=repr(error), stack=traceback.format_exc()
                )
                return

    def _report(self, hold: Hold, end: Exit, result: Result | None) -> None:
        if hold.superseded:
            self._tell(hold, "superseded")
            self._forget(hold)
        elif result is None:
            self._outbox.give_back(hold, end.reason)
        else:
            self._outbox.settle(hold, result)

    def _tell(self, hold: Hold, name: str, **fields: object) -> None:
        told = {key: hold.logs.hide(value) if isinstance(value, str) else value for key, value in fields.items()}
        self._on_event(name, run=hold.key.run, epoch=hold.key.epoch, attempt=hold.assignment.attempt, **told)


def result_of(hold: Hold, end: Exit) -> Result:
    """The result to report for an end; it says so when the log could not be delivered before it."""
    log_end = hold.logs.end if hold.logs.waiting else None
    by_itself = Ending.SUCCEEDED if end.code == 0 and not end.reason else Ending.FAILED
    ending = _ENDINGS.get(end.reason, by_itself)
    return Result(hold.key.run, hold.key.epoch, ending, end.reason, end.detail, end.code, log_end)
