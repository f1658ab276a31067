"""Delivering what an earlier life of the agent left on the disk: output first, then kept files, then the result.

Each step may have been done before, in whole or in part: all of them may be repeated. What the control plane does not
take any more, because the run has moved on, is dropped with a word about it. A log that it does not take just now
holds up nothing: it follows (`runners.agent.late`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from runners.agent.clock import now
from runners.agent.control import ArtifactRefused, ControlUnavailable, Superseded
from runners.agent.events import OnEvent
from runners.agent.http_control import HttpControl
from runners.agent.keeping import PATIENCE_SECONDS
from runners.agent.late import LateLog
from runners.agent.logs import LogBuffer
from runners.agent.spool import Spool, Waiting
from runners.transport import ApiError


class Patiently(Protocol):
    """Repeats a call while the control plane is away; False: the agent was told to stop meanwhile."""

    def __call__(self, call: Callable[[], Any], /) -> bool:
        """`call` raises what is not an outage."""


class Delivery:
    """Of one start of an agent. `late` is what is left of logs whose end was told."""

    def __init__(self, control: HttpControl, spool: Spool, patiently: Patiently, on_event: OnEvent) -> None:
        self._control = control
        self._spool = spool
        self._patiently = patiently
        self._on_event = on_event
        self.late: list[LateLog] = []

    def deliver_all(self) -> int:
        """Until everything is delivered or refused, or the agent is told to stop; what is left stays on the disk."""
        delivered = 0
        for waiting in list(self._spool.waiting()):
            logs = LogBuffer.resumed(waiting.offset, waiting.output)
            if not self._deliver(waiting, logs):
                break
            if logs.waiting:
                self.late.append(LateLog(waiting.key, waiting.attempt, logs, self._dropping(waiting)))
                continue
            self._dropping(waiting)()
            self._tell(waiting, "delivered", bytes=len(waiting.output), files=len(waiting.kept))
            delivered += 1
        return delivered

    def _dropping(self, waiting: Waiting) -> Callable[[], None]:
        def drop() -> None:
            self._spool.drop(waiting.key)
            self._control.forget(waiting.key)

        return drop

    def _deliver(self, waiting: Waiting, logs: LogBuffer) -> bool:
        """False: told to stop before all of it was tried."""
        key, put = waiting.key, self._control.put_artifact
        self._control.remember(key, waiting.job_token)
        output = self._step(waiting, "output", lambda: self._flush(waiting, logs))
        files = [self._step(waiting, one.name, partial(put, key, one)) for one in waiting.kept]
        steps = [output, *files]
        if (result := waiting.result) is not None:
            steps.append(lambda: self._settled(waiting, self._control.settle([result])))
        return all(self._patiently(step) for step in steps)

    def _flush(self, waiting: Waiting, logs: LogBuffer) -> None:
        try:
            logs.flush(lambda offset, data: self._control.append_log(waiting.key, offset, data))
        except Superseded:
            logs.discard()
            raise

    def _step(self, waiting: Waiting, what: str, call: Callable[[], Any]) -> Callable[[], None]:
        """An outage goes up, to be waited out. A refusal ends this step alone, and so does a minute in which the
        control plane answers and does not take this."""
        patience = _Patience(self._control)

        def tried() -> None:
            try:
                call()
            except ControlUnavailable as error:
                if not patience.is_over():
                    raise
                self._tell(waiting, "undeliverable", what=what, error=str(error))
            except (Superseded, ArtifactRefused, ApiError, FileNotFoundError) as error:
                self._tell(waiting, "undeliverable", what=what, error=str(error))

        return tried

    def _settled(self, waiting: Waiting, verdicts: Any) -> None:
        verdict = verdicts.get(waiting.key, "superseded")
        self._tell(waiting, "settled_late", verdict=str(verdict))

    def _tell(self, waiting: Waiting, name: str, **fields: object) -> None:
        self._on_event(name, run=waiting.key.run, epoch=waiting.key.epoch, attempt=waiting.attempt, **fields)


class _Patience:
    """A minute, begun anew whenever the control plane is away altogether."""

    def __init__(self, control: HttpControl) -> None:
        self._control = control
        self._until: float | None = None

    def is_over(self) -> bool:
        if not self._answers():
            self._until = None
            return False
        self._until = self._until or now() + PATIENCE_SECONDS
        return now() >= self._until

    def _answers(self) -> bool:
        try:
            self._control.introduce()
        except ControlUnavailable:
            return False
        except ApiError:
            return True
        return True
