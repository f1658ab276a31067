"""What the Docker side gives to the Redis side: a record that survives the loss of Redis, a look at containers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from admission.physical.results import Snapshot


@dataclass(frozen=True, slots=True)
class LedgerMark:
    """Names one Redis dataset. Every initialisation makes the next number and a new random id."""

    number: int
    ledger: str


@dataclass(frozen=True, slots=True)
class GenerationMark:
    """The limit that a generation stands for."""

    generation: int
    limit: int


class OutsideRecord(Protocol):
    """Kept on the pinned Docker daemon, for one instance.

    An error of the daemon is raised as `errors.Unavailable`; it is never answered by none.
    """

    def daemon_id(self) -> str:
        """Engine id and instance nonce of the daemon that answers now; cloned engines differ."""
        ...

    def ledger(self) -> LedgerMark | None:
        """The mark with the highest number; None: this daemon never saw a ledger of this instance."""
        ...

    def put_ledger(self, mark: LedgerMark) -> LedgerMark:
        """Put it if its number is new; the first to put a number wins. Returns what stands under that number now."""
        ...

    def generation(self) -> GenerationMark | None:
        """The mark with the highest generation ever put."""
        ...

    def put_generation(self, mark: GenerationMark) -> GenerationMark:
        """Put it if its generation is new; the first wins. Returns what stands under that generation now."""
        ...


@dataclass(frozen=True, slots=True)
class Verified:
    """What a look at the containers found. `clean`: a complete listing found none without a token."""

    clean: bool
    removed: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class View(Protocol):
    """The holders as one incarnation of the server has them."""

    def read(self) -> Snapshot:
        """Read again, on the connection that is being verified; raises when it is gone."""
        ...


Verify = Callable[[View], Verified]
"""P12: list the instance's containers in all states, THEN `view.read()`; remove each whose token is absent and confirm
it (404); again until a listing finds none: clean. Gives up on its own time budget: not clean, with the problems.
Errors of the daemon are told as problems, or raised as `errors.NotVerified`."""
