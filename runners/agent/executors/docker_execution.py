"""One container: its output, its end, and the proof that it is gone.

Output is read from a connection made *before* the start: nothing is lost to a rotated log file, order is kept, and a
slow reader slows the writer instead of losing bytes. Its end also tells at once that the container is done. The
daemon keeps a bounded copy, for whoever has to go on after a broken connection.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from typing import TYPE_CHECKING

from runners.agent.clock import now
from runners.agent.executors import container_config as config
from runners.agent.executors import disk, scratch
from runners.agent.executors.archive import collect_from_container
from runners.agent.executors.base import ExecutorError, Exit, LogSink, MayStart
from runners.agent.executors.docker_adapter import Attached, DaemonSilent, DockerAdapter, NotFound, Refused
from runners.agent.executors.docker_sweep import remove_confirmed
from runners.agent.executors.frames import Frames
from runners.agent.executors.slots import Place
from runners.agent.executors.stopping import Stopping

if TYPE_CHECKING:
    from pathlib import Path

    from runners.agent.artifacts import Collected
    from runners.agent.assignment import Assignment

log = logging.getLogger(__name__)

READ_BYTES = 256 * 1024
QUICK_SECONDS = 10
LOST_CREATE_SECONDS = 10.0
NEVER_STARTED = "0001-01-01T00:00:00Z"
LOST_CODE = 255
_KILLED = {137, 143, LOST_CODE}
_POLL_SECONDS = 30.0
_BROKEN_POLL_SECONDS = 1.0
# A container whose output ended by itself is reported as ended within this; later, the connection broke first.
_PROMPT_SECONDS = 0.5


class DockerExecution:
    """One container. `wait` and `remove` belong to one thread; `stop` may come from any."""

    def __init__(  # noqa: PLR0917 - made in one place, by the executor
        self, adapter: DockerAdapter, assignment: Assignment, sink: LogSink, name: str, token: str, place: Place
    ) -> None:
        self.assignment = assignment
        self.sink = sink
        self.files: Path | None = None
        self.container: str | None = None
        self.image_id = ""
        self.name = name
        self._adapter = adapter
        self._token = token
        self._place = place
        self._asked: config.Json = {}
        self._ended: Exit | None = None
        self._attached: Attached | None = None
        self._broken = False
        self._code: int | None = None
        self._delivered = 0
        self._reason = ""
        self._disk: disk.DiskWatch | None = None
        self._let_go = False
        self._lock = threading.Lock()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._open = True

    # -- making -----------------------------------------------------------------------------------------------------

    def create(self, asked: config.Json) -> None:
        """The create call, once. A lost reply is looked for by label; what is found is used."""
        self._asked = asked
        self._place.ask()
        try:
            self.container = self._adapter.create(self.name, asked)
        except DaemonSilent as error:
            self._ended = Exit(None, "lost", f"the reply to create was lost: {error}")
            self._find_lost()

    def begin(self, may_start: MayStart) -> None:
        """Register, verify, attach, start; a failure becomes the exit, for a container is there to be removed."""
        if self.container is None:
            return
        self._ended = None
        self._place.guard(self._lose)
        try:
            self._prepare(self.container)
            may_start()
            self._place.ask()
            self._start(self.container)
        except NotFound as error:
            # Not "no such program", which the daemon also answers so: the container went, with its place.
            if self._certainly_gone():
                self._ended = Exit(None, "lost", f"its container was removed before it was started: {error}")
            else:
                self._ended = Exit(127, "executor_error", str(error))
        except Refused as error:
            code = 127 if "not found" in str(error) or "no such file" in str(error) else 126
            self._ended = Exit(code, "executor_error", str(error))
        except DaemonSilent as error:
            # Says nothing about the run: it is given back, not failed.
            self._ended = Exit(None, "lost", str(error))
        except ExecutorError as error:
            self._ended = Exit(None, error.reason, str(error))

    def _make_room(self, container: str) -> None:
        """Where something is to be kept: a working directory in the container's own layer, which is then watched."""
        self._disk = disk.watch(self._adapter, container, self.assignment.spec)
        if self._disk is not None:
            self._adapter.make_directory(container, self.assignment.spec.working_dir, config.NOBODY_ID)

    def _prepare(self, container: str) -> None:
        inspected = self._adapter.inspect(container)
        self.image_id = inspected.get("Image", "")
        config.check_applied(self._asked, inspected)
        # A tag moves; what was executed is told by the image's digest alone (rule P17).
        log.info(
            "executor.container_made",
            extra={"run": self.assignment.run, "container": container, "image_digest": self.image_id},
        )
        self._make_room(container)
        self._attached = self._adapter.attach(container)
        self._place.register(container)

    def _certainly_gone(self) -> bool:
        try:
            return self.container is not None and self._adapter.is_gone(self.container)
        except ExecutorError as error:
            log.warning("%s: %s", self.name, error)
            return False

    def _lose(self) -> None:
        """The place is lost; from another thread. Reported as such, and by force: no grace for what may not run."""
        if self._place.displaced:
            self.let_go()
            return
        self.stop("lost")
        self._remove_made(None)

    def _find_lost(self) -> None:
        until = now() + LOST_CREATE_SECONDS
        while self.container is None and now() < until:
            try:
                self.container = next(iter(self._listed()), None)
            except DaemonSilent as error:
                log.warning("looking for the container of %s: %s", self.name, error)
            if self.container is None:
                time.sleep(0.5)

    def _listed(self) -> dict[str, str]:
        return self._adapter.list_ids({config.LABEL_TOKEN: self._token})

    def _start(self, container: str) -> None:
        try:
            self._adapter.start(container)
        except DaemonSilent:
            # Never sent twice. If it was not done yet it still may be: the caller removes the container.
            if self._adapter.inspect(container)["State"]["StartedAt"] == NEVER_STARTED:
                raise

    # -- waiting ----------------------------------------------------------------------------------------------------

    def wait(self, deadline: float | None) -> Exit:
        """See `Execution.wait`."""
        if self._ended is None:
            self._ended = self._outcome(whole=self._pump(deadline))
        return self._ended

    def stop(self, reason: str) -> None:
        """See `Execution.stop`. The signals are sent by the waiting thread."""
        with self._lock:
            if not self._reason:
                self._reason = reason
            if self._open:
                _poke(self._wake_write)

    def let_go(self) -> None:
        """See `Execution.let_go`."""
        self._let_go = True
        self.stop("adopted")

    def _pump(self, deadline: float | None) -> bool:
        """Deliver output until the container ended; False when it had to be given up on."""
        stopping = Stopping(self._kill, self.assignment.spec.stop_grace_seconds)
        frames = Frames(self._deliver)
        while True:
            moment = now()
            if deadline is not None and moment >= deadline:
                self.stop("timeout")
            if self._disk is not None and not self._reason and self._disk.is_full(moment):
                self.stop(disk.REASON)
            if self._let_go or (self._reason and stopping.step(moment)):
                return False
            looks = None if self._disk is None or self._reason else self._disk.next
            due = [t for t in (stopping.next, None if self._reason else deadline, looks) if t is not None]
            seconds = min([_POLL_SECONDS, *(max(0.0, t - moment) for t in due)])
            if self._attached is None:
                self._sleep(min(seconds, _BROKEN_POLL_SECONDS))
                if self._ended_unseen():
                    return True
            elif self._readable(self._attached, seconds) and not self._read(self._attached, frames):
                self._attached.close()
                self._attached = None
                # Counted from the output's end, not from before the wait for it.
                ended = now()
                if self._exit_code() is not None and now() - ended < _PROMPT_SECONDS:
                    return True
                self._broken = True

    def _sleep(self, seconds: float) -> None:
        # Not `select`: that refuses descriptors from 1024 on, which a driver with many slots has.
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if poll.poll(seconds * 1000 + 1):
            _drain(self._wake_read)

    def _readable(self, attached: Attached, seconds: float) -> bool:
        poll = select.poll()
        poll.register(attached.fileno, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(seconds * 1000 + 1)}
        if self._wake_read in ready:
            _drain(self._wake_read)
        return attached.fileno in ready

    def _read(self, attached: Attached, frames: Frames) -> bool:
        """Read once; False at the end of the stream."""
        try:
            data = attached.read(READ_BYTES)
        except BlockingIOError:
            return True
        except OSError as error:
            log.warning("output of %s broke off: %s", self.name, error)
            return False
        frames.feed(data)
        return bool(data)

    def _exit_code(self) -> int | None:
        """The end of the output is not proof of the container's: None when the daemon does not confirm it."""
        try:
            self._code = self._adapter.wait(self._id(), QUICK_SECONDS)
        except NotFound:
            self._code = LOST_CODE
        except ExecutorError as error:
            log.warning("%s: %s", self.name, error)
        return self._code

    def _ended_unseen(self) -> bool:
        """After the connection broke: has it ended? Then the rest of the output comes from the daemon's copy."""
        try:
            running = self._adapter.inspect(self._id())["State"]["Running"]
            if running:
                return False
            skip = self._delivered
            for data in self._adapter.output_since_creation(self._id()):
                if len(data) > skip:
                    self._deliver(data[skip:])
                skip = max(0, skip - len(data))
        except NotFound:
            self._code = LOST_CODE
            return True
        except ExecutorError as error:
            log.warning("%s: %s", self.name, error)
            return False
        return self._exit_code() is not None

    def _deliver(self, data: bytes) -> None:
        self._delivered += len(data)
        self.sink(data)

    def _kill(self, signal: str) -> None:
        self._adapter.kill(self._id(), signal)

    def _id(self) -> str:
        if self.container is None:
            raise ExecutorError(f"the container of {self.name} is not known")
        return self.container

    def _outcome(self, *, whole: bool) -> Exit:
        if self._let_go:
            return Exit(None, "adopted", "another driver goes on with it")
        if not whole:
            return Exit(None, self._reason, "it did not end after SIGKILL; it is removed by force")
        if self._reason or not self._code:
            return Exit(self._code, self._reason, self._why())
        return self._judged(self._code)

    def _why(self) -> str:
        if self._reason == disk.REASON and self._disk is not None:
            return self._disk.detail
        return self._place.lost if self._reason == "lost" else ""

    def _judged(self, code: int) -> Exit:
        """It was not asked to end, and failed: was that its own doing?"""
        if code in _KILLED and not self._place.held():
            # Whoever recovers a place fences it first: had it ended by itself, the place would still be ours.
            return Exit(code, "lost", self._place.lost or "its place was recovered by another process")
        state = self._state()
        if state.get("OOMKilled"):
            return Exit(code, "oom")
        if self._broken and code in _KILLED:
            return Exit(code, "lost", "the connection to the daemon broke and the container ended with it")
        return Exit(code, "", str(state.get("Error", "")))

    def _state(self) -> config.Json:
        try:
            state: config.Json = self._adapter.inspect(self._id())["State"]
        except ExecutorError as error:
            return {"Error": f"how it ended is not known: {error}"}
        return state

    # -- keeping ---------------------------------------------------------------------------------------------------

    def collect(self, collection: Collected) -> None:
        """See `Execution.collect`."""
        if self.container is not None:
            collect_from_container(self._adapter, self.container, self.assignment.spec, collection)

    # -- removing ---------------------------------------------------------------------------------------------------

    def remove(self) -> None:
        """See `Execution.remove`."""
        self._close()
        if self._let_go:
            self._place.drop()
            return
        self._place.release(self._remove_made)
        if self._place.displaced:
            return
        if self.files is not None:
            scratch.remove_tree(self.files)

    def _remove_made(self, recorded: str | None) -> None:
        known = {container for container in (self.container, recorded) if container}
        # Without a known id the create's reply was lost: the label finds what it made, in whatever state.
        for container in known or set(self._listed()):
            remove_confirmed(self._adapter, container)

    def discard(self) -> None:
        """Forget an execution for which the daemon certainly made nothing."""
        self._close()
        self._place.release(_nothing_made)
        if self.files is not None:
            scratch.remove_tree(self.files)

    def _close(self) -> None:
        with self._lock:
            if not self._open:
                return
            self._open = False
            os.close(self._wake_read)
            os.close(self._wake_write)
        if self._attached is not None:
            self._attached.close()


def _nothing_made(recorded: str | None) -> None:
    """What a place is released with for which the daemon certainly made nothing."""


def _poke(fd: int) -> None:
    try:
        os.write(fd, b"x")
    except BlockingIOError:
        return  # The pipe is full of earlier pokes: the reader will wake.


def _drain(fd: int) -> None:
    try:
        os.read(fd, 4096)
    except BlockingIOError:
        return  # Somebody's poke was already taken.
