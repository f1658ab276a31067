"""Up to when the containers of a driver may exist, kept by a watchdog beside it (rule A16).

A deadline counts from the clock as it was read *before* an accepted renewal was sent, so that the control plane, which
counts from its own time of the acceptance, can only be later. The driver moves the deadline and asks before each
start; the watchdog alone enforces it, because a driver that is paused or dead enforces nothing.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from runners.agent.clock import now
from runners.agent.executors.base import ExecutorError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runners.agent.assignment import RunKey

# A watchdog that takes longer to answer is busy removing.
CLAIM_SECONDS = 1.0


class FencePassed(ExecutorError):
    """Nothing may be started any more, or the watchdog does not confirm that it keeps the deadline.

    Nothing was executed, so the run is given back without burning an attempt.
    """

    reason = "fenced"


class Keeper(Protocol):
    """Who enforces the deadline."""

    def tell(self, deadline: float | None) -> None:
        """Pass on the deadline. Never blocks."""

    def confirm(self, until: float) -> bool:
        """Have the watchdog say that it lives and knows the deadline; waits for it until `until`."""

    def close(self) -> None:
        """Nothing is held any more: the watchdog may go."""


class Fence:
    """The deadline of one driver: the earliest of its runs', and of its own beat's where that carries its runs.

    `run_seconds`: how long a run may be executed after the sending of its last accepted renewal. `beat_seconds`: the
    same for the driver's beat, counted first from `vouched_at`; None where each run has its own lease.
    """

    def __init__(
        self,
        keeper: Keeper,
        run_seconds: float,
        *,
        beat_seconds: float | None = None,
        vouched_at: float = 0.0,
    ) -> None:
        self._keeper = keeper
        self._run_seconds = run_seconds
        self._beat_seconds = beat_seconds
        self._vouched_at = vouched_at
        self._renewed: dict[RunKey, float] = {}
        self._told: float | None = None
        self._passed_at = float("-inf")
        self._lock = threading.Lock()

    def begin(self, key: RunKey, asked: float) -> None:
        """This run may have a container from now on; its start, accepted, was asked for at `asked`."""
        with self._lock:
            self._renewed[key] = max(asked, self._renewed.get(key, asked))
            self._tell()

    def renewed(self, keys: Iterable[RunKey], asked: float) -> None:
        """Renewals of these were accepted. Of others than those begun with, nothing can exist."""
        with self._lock:
            for key in keys:
                if key in self._renewed:
                    self._renewed[key] = max(asked, self._renewed[key])
            self._tell()

    def vouched(self, asked: float) -> None:
        """The driver's own beat was accepted."""
        with self._lock:
            self._vouched_at = max(asked, self._vouched_at)
            self._tell()

    def forget(self, key: RunKey) -> None:
        """Nothing of it is left here, confirmed."""
        with self._lock:
            self._renewed.pop(key, None)
            self._tell()

    def allows_claims(self) -> bool:
        """Whether what is claimed now could be started: else it would be claimed and returned, again and again."""
        moment = now()
        vouched = self._beat_seconds is None or moment < self._vouched_at + self._beat_seconds
        with self._lock:
            passed = self._told is not None and moment >= self._told
        return vouched and not passed and self._keeper.confirm(moment + CLAIM_SECONDS)

    def ask(self, key: RunKey) -> None:
        """The last thing before anything of it is executed.

        Raises:
            FencePassed: it must not be.
        """
        with self._lock:
            deadline = self._told if key in self._renewed else None
        if deadline is None:
            raise FencePassed(f"run {key.run} is not held under the fence; it is not started")
        if not self._keeper.confirm(deadline):
            raise FencePassed(f"the watchdog does not confirm the fence of run {key.run}; it is not started")
        if now() >= deadline:
            raise FencePassed(f"the renewals of run {key.run} stay away too long; it is not started")

    def passed_since(self, moment: float) -> bool:
        """Whether the watchdog may have removed what existed then."""
        with self._lock:
            return self._passed_at >= moment or (self._told is not None and now() >= self._told)

    def close(self) -> None:
        """Nothing is held any more."""
        self._keeper.close()

    def _deadline(self) -> float | None:
        if not self._renewed:
            return None
        runs = min(self._renewed.values()) + self._run_seconds
        return runs if self._beat_seconds is None else min(runs, self._vouched_at + self._beat_seconds)

    def _tell(self) -> None:
        before, self._told = self._told, self._deadline()
        if before == self._told:
            return
        self._keeper.tell(self._told)
        # Read after the telling: had the driver been paused in between, the watchdog would have acted on the old one.
        moment = now()
        if before is not None and moment >= before:
            self._passed_at = moment
