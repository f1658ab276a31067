"""Containers that a dead driver left: which there are, and how another driver goes on with one (rule R10).

What was started is waited for, with its output since its creation; what has ended is collected. What was created and
not started is nobody's to start: its maker's own request to start it may still be under way.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from runners.agent.executors import container_config as config
from runners.agent.executors import disk, scratch
from runners.agent.executors.base import ExecutorError, Exit, LogSink, Made, NotAdoptable
from runners.agent.executors.docker_adapter import Attached, DaemonSilent, DockerAdapter, Listed, NotFound
from runners.agent.executors.docker_execution import NEVER_STARTED, READ_BYTES, DockerExecution
from runners.agent.executors.docker_sweep import remove_confirmed
from runners.agent.executors.slots import NO_PLACE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runners.agent.assignment import Assignment
    from runners.agent.executors.frames import Frames
    from runners.agent.executors.slots import SlotKeeper

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
_ADOPTABLE = {"running", "paused", "exited"}


def look(adapter: DockerAdapter, labels: Mapping[str, str]) -> list[Made]:
    """The containers of runs that bear all these labels, in any state."""
    named = [c for c in adapter.list_containers(labels) if config.LABEL_RUN in c.labels]
    return [
        Made(c.id, int(c.labels[config.LABEL_RUN]), int(c.labels[config.LABEL_ATTEMPT]), c.state in _ADOPTABLE)
        for c in named
    ]


def adopt(
    adapter: DockerAdapter,
    assignment: Assignment,
    sink: LogSink,
    labels: Mapping[str, str],
    slots: SlotKeeper,
) -> AdoptedExecution:
    """An execution of the one container of this attempt that its maker left.

    Several would be a defect of somebody's: none is trusted, all are removed.

    Raises:
        NotAdoptable: there is none.
    """
    own = {config.LABEL_RUN: str(assignment.run), config.LABEL_ATTEMPT: str(assignment.attempt)}
    found = _listed(adapter, {**labels, **own})
    if not found:
        raise NotAdoptable(f"no container of attempt {assignment.attempt} of run {assignment.run} is there any more")
    execution = AdoptedExecution(adapter, assignment, sink, found)
    execution.take_over(slots)
    return execution


def _listed(adapter: DockerAdapter, labels: Mapping[str, str]) -> list[Listed]:
    """Asked until it is answered: not knowing is no reason to let a container be that may be executing."""
    while True:
        try:
            return adapter.list_containers(labels)
        except DaemonSilent as error:
            log.warning("looking for a container to adopt: %s", error)
            time.sleep(RETRY_SECONDS)


class AdoptedExecution(DockerExecution):
    """A container that another process created and started."""

    def __init__(self, adapter: DockerAdapter, assignment: Assignment, sink: LogSink, found: list[Listed]) -> None:
        first = found[0]
        # Until its place is taken over nobody's: refused, it is only removed, and the ledger's pass frees its token.
        super().__init__(adapter, assignment, sink, first.name, first.labels[config.LABEL_TOKEN], NO_PLACE)
        self.container = first.id
        self.files = scratch.base_directory() / first.name
        self._labels = first.labels
        self._others = [listed.id for listed in found[1:]]
        self._exited = False
        self._overran = False

    def take_over(self, slots: SlotKeeper) -> None:
        """The place first, then the look: what is read of a container that is not ours yet may be old at once.

        What turns out not to be adoptable becomes the exit 'lost': a container is there to be removed.
        """
        try:
            if self._others:
                raise NotAdoptable("several containers bear the labels of one attempt")
            self._place = slots.adopt(self._token, self._id())
            self._place.guard(self._lose)
            self._follow(self._state_known())
        except NotFound as error:
            self._ended = Exit(None, "lost", f"it was removed before it could be adopted: {error}")
        except ExecutorError as error:
            self._ended = Exit(None, "lost", f"not adoptable: {error}")

    def _state_known(self) -> config.Json:
        while True:
            try:
                inspected = self._adapter.inspect(self._id())
            except DaemonSilent as error:
                log.warning("adopting %s: %s", self.name, error)
                time.sleep(RETRY_SECONDS)
            else:
                self.image_id = inspected.get("Image", "")
                state: config.Json = inspected["State"]
                return state

    def _follow(self, state: config.Json) -> None:
        status = state["Status"]
        if status not in _ADOPTABLE or state["StartedAt"] == NEVER_STARTED:
            raise NotAdoptable(f"its state is {status!r}; an adopter starts nothing")
        self._exited = status == "exited"
        # Nobody saw it end: a kill is taken for the daemon's or the machine's, not for its own failure.
        self._broken = self._exited
        self._overran = self._exited and _seconds(state) > self.assignment.spec.timeout_seconds
        image = self._labels.get(config.LABEL_IMAGE, self.assignment.spec.image)
        if image != self.assignment.spec.image:
            self.sink(config.alias_note(self.assignment.spec.image, image))
        self._disk = disk.watch(self._adapter, self._id(), self.assignment.spec)
        self._attached = Followed(self._adapter, self._id())

    def wait(self, deadline: float | None) -> Exit:
        """As for an own one, but what had ended before is judged by how long it ran, not by when it is looked at."""
        end = super().wait(None if self._exited else deadline)
        return replace(end, reason="timeout") if self._overran and not end.reason else end

    def _read(self, attached: Attached, frames: Frames) -> bool:
        if not isinstance(attached, Followed):
            return super()._read(attached, frames)
        data = attached.read(READ_BYTES)
        self._deliver(data)
        return bool(data)

    def remove(self) -> None:
        """See `Execution.remove`."""
        super().remove()
        for other in self._others:
            remove_confirmed(self._adapter, other)


class Followed(Attached):
    """The kept output of a container from its first byte and what comes after, as a connection that can be polled."""

    def __init__(self, adapter: DockerAdapter, container: str) -> None:
        self.fileno, self._into = os.pipe2(os.O_CLOEXEC)
        self._output = adapter.output_since_creation(container)
        threading.Thread(target=self._copy, name=f"follow-{container[:12]}", daemon=True).start()

    def _copy(self) -> None:
        try:
            with closing(self._output):
                for data in self._output:
                    _write_all(self._into, data)
        except BrokenPipeError:
            return  # Nobody reads any more: it was removed, or let go.
        except ExecutorError as error:
            # Its reader sees the end of the output, asks whether the container ended, and goes on from the copy.
            log.warning("the output broke off: %s", error)
        finally:
            os.close(self._into)

    def close(self) -> None:
        """No more is read. The copying thread ends with the next output, or with the container."""
        os.close(self.fileno)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _seconds(state: config.Json) -> float:
    """How long it ran, by the daemon's clock at both ends."""
    return (_time(state["FinishedAt"]) - _time(state["StartedAt"])).total_seconds()


def _time(text: str) -> datetime:
    # Nanoseconds, more digits than are understood everywhere.
    whole, _, fraction = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}.{fraction[:6]:0<6}+00:00")
