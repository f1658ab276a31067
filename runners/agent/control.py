"""The control plane as a driver sees it.

Two implementations: named SQL in the replica's own process (`recovery`), and REST for agents. Each call may raise
`ControlUnavailable`; then nothing is known about its effect, and the driver repeats it (every call is idempotent).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runners.agent.artifacts import Kept, Limits
    from runners.agent.assignment import Assignment, Capacity, Result, RunKey, Verdict


class ControlUnavailable(Exception):
    """The control plane did not answer: outage, time-out, restart. Says nothing about what was done."""

    def __init__(self, message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds that the control plane asked to wait."""


class ClaimCut(Exception):
    """The claim was ended by `stop_waiting`. It may have got something: its repeat brings that."""


class LogOffset(Exception):
    """The stored log ends elsewhere than the sent chunk began."""

    def __init__(self, stored: int) -> None:
        super().__init__(f"the stored log ends at byte {stored}")
        self.stored = stored


class ArtifactRefused(Exception):
    """The control plane does not take this file, and never will. The message says why."""


class Control(Protocol):
    """What a driver may ask. Lists are answered as a whole; a key missing in an answer means `superseded`."""

    def claim(self, request_id: str, capacity: Capacity) -> Sequence[Assignment]:
        """Ask for up to `capacity.slots` runs. The same request id gets the same answer again; 0 slots only that.

        It may be held until there is something, unless `stop_waiting` was called since `may_wait`: then `ClaimCut`.
        """

    def pause(self) -> float | None:
        """Before the next claim, as the last answer says; null: the driver's own interval."""

    def may_wait(self) -> None:
        """The next claim may be held. Whoever claims looks at its own state after this."""

    def stop_waiting(self) -> None:
        """End a claim that is held, or the next one, from another thread."""

    def start(self, keys: Sequence[RunKey]) -> dict[RunKey, Verdict]:
        """Say that these are about to be executed. Only after OK may a container be made."""

    def heartbeat(self, keys: Sequence[RunKey]) -> dict[RunKey, Verdict]:
        """Renew leases and permits of exactly these."""

    def pulling(self, keys: Sequence[RunKey]) -> dict[RunKey, Verdict]:
        """Say that the images of these are being pulled: their start deadline moves on, for a bounded time."""

    def append_log(self, key: RunKey, offset: int, data: bytes) -> int:
        """Store log bytes that begin at `offset`; returns the stored size. Raises `LogOffset`, `Superseded`."""

    @property
    def artifact_limits(self) -> Limits:
        """What one attempt may keep."""

    def put_artifact(self, key: RunKey, kept: Kept) -> None:
        """Store one kept file; the same again is fine. Raises `ArtifactRefused`, `Superseded`."""

    def settle(self, results: Sequence[Result]) -> dict[RunKey, Verdict]:
        """Report ends. OK also for a repeat of the same result."""

    def give_back(self, keys: Sequence[RunKey], reason: str) -> None:
        """Return admitted runs that cannot be started here; no attempt is burned."""

    def forget(self, key: RunKey) -> None:
        """Nothing more will be said about this hold: drop what is kept to say it with."""

    def goes_on(self, key: RunKey, attempt: int) -> bool:
        """Whether a run that is not this driver's any more goes on in that same attempt under another, who adopted
        what executes it. Judged by the run's row."""

    def thread_ends(self) -> None:
        """The calling thread will not call again: let go of what is its own, such as a database connection."""


class Superseded(Exception):
    """The run has moved on: another epoch, another driver, or an ending."""
