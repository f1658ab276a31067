"""Delivering what an earlier life of the agent left on the disk: output first, then kept files, then the result.

Each step may have been done before, in whole or in part: all of them may be repeated. What the control plane does not
take any more, because the run has moved on, is dropped with a word about it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from runners.agent.control import ArtifactRefused, Superseded
from runners.agent.events import OnEvent
from runners.agent.http_control import HttpControl
from runners.agent.logs import LogBuffer
from runners.agent.spool import Spool, Waiting
from runners.transport import ApiError


class Patiently(Protocol):
    """Repeats a call while the control plane is away; False: the agent was told to stop meanwhile."""

    def __call__(self, call: Callable[[], Any], /) -> bool:
        """`call` raises what is not an outage."""


class Delivery:
    """Of one start of an agent."""

    def __init__(self, control: HttpControl, spool: Spool, patiently: Patiently, on_event: OnEvent) -> None:
        self._control = control
        self._spool = spool
        self._patiently = patiently
        self._on_event = on_event

    def deliver_all(self) -> int:
        """Until everything is delivered or refused, or the agent is told to stop; what is left stays on the disk."""
        delivered = 0
        for waiting in list(self._spool.waiting()):
            if not self._deliver(waiting):
                break
            self._spool.drop(waiting.key)
            delivered += 1
        return delivered

    def _deliver(self, waiting: Waiting) -> bool:
        self._control.remember(waiting.key, waiting.job_token)
        steps = [lambda: self._output(waiting), *(self._file(waiting, one) for one in waiting.kept)]
        if waiting.result is not None:
            steps.append(lambda: self._settle(waiting))
        done = all(self._patiently(step) for step in steps)
        if done:
            self._tell(waiting, "delivered", bytes=len(waiting.output), files=len(waiting.kept))
        return done

    def _output(self, waiting: Waiting) -> None:
        logs = LogBuffer.resumed(waiting.offset, waiting.output)
        key = waiting.key
        self._dropping(waiting, "output", lambda: logs.flush(lambda at, data: self._control.append_log(key, at, data)))

    def _file(self, waiting: Waiting, kept: Any) -> Callable[[], None]:
        put = self._control.put_artifact
        return lambda: self._dropping(waiting, kept.name, lambda: put(waiting.key, kept))

    def _settle(self, waiting: Waiting) -> None:
        result = waiting.result
        assert result is not None  # noqa: S101 - asked by the caller
        self._dropping(waiting, "result", lambda: self._settled(waiting, self._control.settle([result])))

    def _settled(self, waiting: Waiting, verdicts: Any) -> None:
        verdict = verdicts.get(waiting.key, "superseded")
        self._tell(waiting, "settled_late", verdict=str(verdict))

    def _dropping(self, waiting: Waiting, what: str, call: Callable[[], Any]) -> None:
        """An outage goes up, to be waited out; a refusal ends this step alone."""
        try:
            call()
        except (Superseded, ArtifactRefused, ApiError, FileNotFoundError) as error:
            self._tell(waiting, "undeliverable", what=what, error=str(error))

    def _tell(self, waiting: Waiting, name: str, **fields: object) -> None:
        self._on_event(name, run=waiting.key.run, epoch=waiting.key.epoch, attempt=waiting.attempt, **fields)
