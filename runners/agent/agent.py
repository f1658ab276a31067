"""The agent: one driver of one machine, over REST. Plain Python, no database.

At start it proves its token, removes what an earlier life left on this machine and returns what the ledger says it
holds; then it works until it is told to stop. SIGTERM drains: what runs is finished, nothing new begins. A second one
stops what runs. Server outages are worked through: what runs goes on and is reported when the server is back. At the
start a Docker daemon that does not answer yet is waited for.
"""

from __future__ import annotations

import fcntl
import hashlib
import signal
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import IO, TypeVar

from runners.agent.assignment import Verdict
from runners.agent.backoff import Backoff, jittered
from runners.agent.clock import now
from runners.agent.control import ClaimCut, ControlUnavailable
from runners.agent.cutting import CuttableTransport
from runners.agent.delivery import Delivery
from runners.agent.driver import Driver
from runners.agent.events import OnEvent, guarded, log_event
from runners.agent.executors import scratch
from runners.agent.executors.base import Executor, ExecutorError
from runners.agent.fence import Fence
from runners.agent.http_control import MOST_WAIT_SECONDS, HttpControl
from runners.agent.late import LateLog
from runners.agent.signalled import Signalled
from runners.agent.spool import Spool, SpoolError
from runners.agent.watchdog_process import make_fence
from runners.transport import ApiError, Transport

T = TypeVar("T")

TICK_SECONDS = 0.2
LIFE_SIGN_SECONDS = 5.0
READ_GRACE_SECONDS = 15.0
STOP_SECONDS = 60.0
LATE_SECONDS = 60.0
MOST_AGENTS = 100
LABEL_DRIVER = "wharfinger.driver"
LABEL_LIFE = "wharfinger.life"


class ExitCode(IntEnum):
    """How an agent ends; 75 to 78 as in sysexits.h, which init systems know."""

    DONE = 0
    """Stopped as asked; nothing is left."""
    UNCONFIRMED = 75
    """Stopped, but not everything was confirmed gone or reported in time. Starting again cleans up."""
    CREDENTIAL = 77
    """The token is dead. Enrol anew; starting again is of no use."""
    CONFIGURATION = 78
    """The executor cannot work here, or the server refuses this version. Starting again is of no use. A daemon that
    does not answer is no such case: it is waited for, like the server."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What this machine offers. None: not bounded here."""

    slots: int = 1
    memory_mib: int | None = None
    cpu: float | None = None
    drain_seconds: float | None = None
    """How long a stop waits for what runs before it stops that too. None: as long as it takes."""
    once: bool = False
    """Take one run, and end with it."""
    idle_exit_seconds: float | None = None
    """End after so long without a run. None: never."""
    spool_directory: Path | None = None
    """Where results and output wait that could not be delivered. None: they do not outlive the process."""


class Agent:
    """Runs until a signal, a drain asked for by the server, or the death of its token."""

    def __init__(
        self,
        url: str,
        token: str,
        make_executor: Callable[[], Executor],
        settings: AgentSettings,
        on_event: OnEvent = log_event,
        *,
        identity: str = "",
        stored_token: Callable[[], str] | None = None,
    ) -> None:
        """`stored_token` reads the token again when it was refused: it may have been replaced meanwhile."""
        self._spool_lock: IO[str] | None = None
        self._late: list[LateLog] = []
        self._make_executor = make_executor
        self._settings = settings
        self._on_event = guarded(on_event)
        waiting = CuttableTransport(url, token, read_seconds=MOST_WAIT_SECONDS + READ_GRACE_SECONDS)
        self._control = HttpControl(Transport(url, token), stored_token=stored_token, waiting=waiting)
        # Names this runner on the machine, whatever the server's numbers: two fleets may use one daemon. It must be
        # the same after the token was replaced, or nobody would find what was made before.
        self._label = {LABEL_DRIVER: identity or machine_label(token)}
        # Names this life of it: the watchdog of an earlier one must not touch what this one makes.
        self._labels = {**self._label, LABEL_LIFE: uuid.uuid4().hex}
        self._lock: IO[str] | None = None
        self._stop = Signalled()
        self._stop_now = Signalled()
        self._ended = threading.Event()

    def run(self) -> int:
        """Until stopped; returns the exit code. Call it on the main thread, it handles the signals."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        try:
            executor = self._reach_executor()
            if executor is None:
                return ExitCode.DONE
            executor.slots.start(self._on_event)
            if not self._introduce():
                return ExitCode.CREDENTIAL if self._control.revoked else ExitCode.DONE
        except (ExecutorError, ApiError) as error:
            self._on_event("driver_error", error=str(error))
            return ExitCode.CONFIGURATION
        try:
            if self._control.fence_seconds is not None:
                self._lock = lock_machine(self._label[LABEL_DRIVER])
            spool = self._deliver_spooled()
            self._clean_up(executor)
            fence = self._make_fence(executor)
        except SpoolError as error:
            self._on_event("driver_error", error=str(error))
            return ExitCode.CONFIGURATION
        except (ExecutorError, ApiError) as error:
            self._on_event("driver_error", error=str(error))
            return ExitCode.UNCONFIRMED
        return self._work(executor, fence, spool)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stop.is_set():
            self._stop_now.set()
        self._stop.set()

    def _reach_executor(self) -> Executor | None:
        """Until it can work. None: stopped before. After a boot the runner may be up before the Docker daemon is."""
        backoff = Backoff(0.5, 30.0)
        while not self._stop.is_set():
            try:
                return self._make_executor()
            except ExecutorError as error:
                if not error.temporary:
                    raise
                self._on_event("executor_unavailable", error=str(error))
                self._stop.wait(backoff.delay())
        return None

    def _introduce(self) -> bool:
        """Until the server answers. False: stopped before, or the token is dead."""
        answer = self._patiently(self._control.introduce)
        if answer is None:
            return False
        self._on_event("connected", runner=answer["id"], name=answer["name"], mode=answer["mode"])
        return True

    def _deliver_spooled(self) -> Spool | None:
        """What an earlier life had reached comes first: afterwards what the ledger says we hold is returned."""
        if self._settings.spool_directory is None:
            return None
        directory, self._spool_lock = own_directory(self._settings.spool_directory)
        spool = Spool(directory)

        def patiently(call: Callable[[], object]) -> bool:
            return self._patiently(lambda: (call(), True)) is not None

        delivery = Delivery(self._control, spool, patiently, self._on_event)
        if delivered := delivery.deliver_all():
            self._on_event("delivered_all", runs=delivered)
        self._late = delivery.late
        return spool

    def _clean_up(self, executor: Executor) -> None:
        """Executions of an earlier life first: a run may be returned only when nothing of it is left."""
        if swept := executor.sweep(self._label):
            self._on_event("swept", executions=swept)
        left = self._patiently(self._control.held) or []
        if left:
            keys = [key for key, _ in left]
            self._patiently(lambda: self._control.give_back(keys, "agent restarted"))
            self._on_event("returned", runs=len(left))

    def _patiently(self, call: Callable[[], T]) -> T | None:
        backoff = Backoff(0.5, 30.0)
        while not self._stop.is_set():
            try:
                return call()
            except ControlUnavailable as error:
                self._on_event("control_unavailable", error=str(error))
                if self._control.revoked:
                    return None
                self._stop.wait(backoff.delay())
        return None

    def _make_fence(self, executor: Executor) -> Fence | None:
        self._control.kept_fence_seconds = self._control.fence_seconds
        if self._control.fence_seconds is None:
            return None
        return make_fence(executor, self._labels, self._on_event, self._control.fence_seconds)

    def _work(self, executor: Executor, fence: Fence | None, spool: Spool | None) -> int:
        driver = Driver(
            self._control,
            executor,
            slots=1 if self._settings.once else self._settings.slots,
            most=1 if self._settings.once else None,
            labels=self._labels,
            memory_mib=self._settings.memory_mib,
            cpu=self._settings.cpu,
            heartbeat_seconds=self._control.heartbeat_seconds or 30.0,
            poll_seconds=self._control.poll_seconds or 1.0,
            on_event=self._on_event,
            fence=fence,
            spool=spool,
        )
        self._control.on_verdict = driver.apply
        for late in self._late:
            driver.late.take(late)
        driver.start()
        life = threading.Thread(target=self._show_life, args=(driver,), name="life", daemon=True)
        life.start()
        idle = Idle(driver, self._settings)
        while not (self._stop.wait(TICK_SECONDS) or self._control.revoked or self._control.mode == "draining"):
            if idle.is_over():
                break
        self._stop.set()
        code = self._abandon(driver) if self._control.revoked else self._goodbye(driver)
        self._ended.set()
        executor.slots.close()
        return code

    def _show_life(self, driver: Driver) -> None:
        """A full driver asks for nothing; cancels and the server's wishes must reach it all the same."""
        pause = LIFE_SIGN_SECONDS
        while not self._ended.wait(jittered(pause)):
            began, pause = now(), LIFE_SIGN_SECONDS
            if self._control.waits:
                continue  # the claim that is held brings them
            try:
                self._control.watch()
            except ClaimCut:
                continue
            except (ControlUnavailable, ApiError) as error:
                self._on_event("control_unavailable", loop="life", error=str(error))
            else:
                pause = 0.0 if now() - began > LIFE_SIGN_SECONDS else LIFE_SIGN_SECONDS

    def _goodbye(self, driver: Driver) -> int:
        self._on_event("draining", held=len(driver.held))
        drained, patience = False, self._settings.drain_seconds
        until = None if patience is None else now() + patience
        while not (drained or self._stop_now.is_set() or self._control.revoked or (until and now() > until)):
            drained = driver.drain(TICK_SECONDS)
        if self._control.revoked:
            return self._abandon(driver)
        if not drained:
            self._on_event("stopping_now", held=len(driver.held))
            drained = driver.stop_now(STOP_SECONDS)
        whole = self._finish_logs(driver)
        self._on_event("stopped", drained=drained, undelivered_logs=len(driver.late))
        return ExitCode.DONE if drained and whole else ExitCode.UNCONFIRMED

    def _finish_logs(self, driver: Driver) -> bool:
        """Output that follows its end is waited for a while; what is left then is in the spool."""
        until = now() + LATE_SECONDS
        driver.late.hurry()
        while not driver.late.wait_until_empty(TICK_SECONDS):
            if now() >= until or self._stop_now.is_set() or self._control.revoked:
                return False
        return True

    def _abandon(self, driver: Driver) -> int:
        """The token is dead: its runs are others' by now. Stop everything, report nothing."""
        until = now() + STOP_SECONDS
        while driver.held and now() < until:
            for key in driver.held:
                driver.apply(key, Verdict.SUPERSEDED)
            driver.drain(TICK_SECONDS)
        self._on_event("abandoned", left=len(driver.held))
        return ExitCode.CREDENTIAL


def machine_label(token: str) -> str:
    """By which a machine's containers are found: of the first token that it had."""
    return "runner-" + hashlib.sha256(token.encode()).hexdigest()[:16]


class Idle:
    """Whether an agent that shall not stay has nothing to stay for."""

    def __init__(self, driver: Driver, settings: AgentSettings) -> None:
        self._driver = driver
        self._settings = settings
        self._since = now()

    def is_over(self) -> bool:
        """It took its one run and is done with it, or it was without one for long enough."""
        if self._driver.held:
            self._since = now()
            return False
        seconds = self._settings.idle_exit_seconds
        return self._driver.took_all or (seconds is not None and now() - self._since >= seconds)


def own_directory(base: Path) -> tuple[Path, IO[str]]:
    """A directory of this agent alone below `base`, an earlier life's if there is one; held with the returned file.

    Raises:
        SpoolError: it cannot be made, or as many agents as may be are at it.
    """
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        for number in range(MOST_AGENTS):
            file = (base / f"{number}.lock").open("w")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                continue
            return base / str(number), file
    except OSError as error:
        raise SpoolError(f"the spool {base} cannot be used ({error.strerror}); set WHARFINGER_SPOOL") from error
    raise SpoolError(f"{MOST_AGENTS} agents of this runner are at {base} already")


def lock_machine(label: str) -> IO[str]:
    """Held for as long as the returned file is open: one agent of this token on this machine.

    What an earlier life holds is returned at the start. Were that life only paused, it could still start what was
    returned and is executed elsewhere by then.

    Raises:
        ExecutorError: an earlier one is still there.
    """
    file = (scratch.base_directory() / f"{label}.lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise ExecutorError(
            "another agent with this token lives on this machine, running or paused; "
            "under strict fencing there may be one only: end it first"
        ) from error
    return file
