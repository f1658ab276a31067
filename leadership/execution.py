"""Executing a fire: every transaction of a sweep proves the term that sent it, and holds it (L5, rules L6, L7)."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, InterfaceError, connection, transaction
from psycopg.types.json import Jsonb

from controlplane.core.conf import conf
from controlplane.core.errors import NotFound
from controlplane.core.loops import Progress
from controlplane.core.sql import is_outage, one
from leadership import registry, sql
from leadership.belief import now
from leadership.election import LOOPS
from leadership.models import FireState

log = logging.getLogger(__name__)

MAX_ERROR = 2000
INSIST_TIMES = 5
INSIST_SECONDS = 1.0

T = TypeVar("T")


class Superseded(Exception):
    """The term is over, or the fire is not ours any more. Nothing was written."""


class Outcome(StrEnum):
    """What became of a task."""

    DONE = "done"
    FAILED = "failed"
    SUPERSEDED = "superseded"


@contextmanager
def under_term(term: int, *, role: str = LOOPS) -> Iterator[None]:
    """One transaction that commits only under this term. Raises Superseded before anything is written.

    The proof is a lock, not a look: a takeover waits until this transaction ended, and a transaction that is stopped
    inside is ended by the server after `sweep_transaction_seconds`. (A sub-select would be judged by a snapshot, and a
    leader replaced between the look and the write would write all the same.)
    """
    with transaction.atomic():
        one(sql.BOUND_TRANSACTION, {"ms": str(int(conf().sweep_transaction_seconds * 1000))})
        if one(sql.PROVE_TERM, {"role": role, "term": term}) is None:
            raise Superseded(f"term {term} of {role} is over")
        yield


@dataclass(slots=True)
class _Sweep:
    """One fire under way."""

    fire: int
    term: int
    steps: tuple[str, ...]
    deadline: float
    counts: dict[str, Any] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def run(self) -> Outcome:
        """Each step, batch by batch; the last transaction also ends the fire."""
        for path in self.steps[:-1]:
            self._repeat(path)
        if not self._repeat(self.steps[-1], last=True):
            # The last step failed, and its transaction was undone with the ending: end the fire by itself.
            insist(self._end_failed)
        return Outcome.FAILED if self.errors else Outcome.DONE

    def _repeat(self, path: str, *, last: bool = False) -> bool:
        """A step until it says that nothing is left, or the budget is spent. True: the fire was ended in it."""
        try:
            step = registry.step(path)
            while True:
                with self._transaction():
                    progress = step()
                    over = not progress.more or now() >= self.deadline
                    if over and last:
                        self._finish(progress)
                self._count(progress)
                if over:
                    return last
        except Superseded:
            raise
        except Exception as error:
            # Recorded on the fire, where operators see it, and the other steps go on: one broken row or statement must
            # not keep every deadline of the fleet from being judged.
            log.exception("loop.step_failed", extra={"step": path, "fire": self.fire, "term": self.term})
            self.errors.append(f"{path}: {type(error).__name__}: {error}"[:MAX_ERROR])
            return False

    def _end_failed(self) -> None:
        with self._transaction():
            self._finish()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with under_term(self.term):
            if one(sql.PROGRESS_FIRE, {"fire": self.fire, "term": self.term}) is None:
                raise Superseded(f"fire {self.fire} was ended or taken over")
            yield

    def _count(self, progress: Progress) -> None:
        self.counts = _merged(self.counts, progress)

    def _finish(self, progress: Progress | None = None) -> None:
        state = FireState.FAILED if self.errors else FireState.DONE
        counts = _merged(self.counts, progress or Progress())
        one(
            sql.FINISH_FIRE,
            {
                "fire": self.fire,
                "term": self.term,
                "state": state.value,
                "result": Jsonb(counts),
                "error": "\n".join(self.errors),
            },
        )


def _merged(counts: dict[str, Any], progress: Progress) -> dict[str, Any]:
    merged = dict(counts)
    for name, value in progress.counts.items():
        merged[name] = merged.get(name, 0) + value if type(value) is int else value
    return merged


def execute_fire(loop: str, fire_at: datetime, term: int) -> Outcome:
    """Take the fire (once), run the loop's steps under the term, record the end."""
    parameters = {"loop": loop, "fire_at": fire_at, "term": term, "worker": f"{worker_name()}:{secrets.token_hex(4)}"}
    taken = insist(lambda: one(sql.START_FIRE, parameters))
    if taken is None:
        return Outcome.SUPERSEDED
    try:
        sweep = _Sweep(taken["id"], term, _steps(loop), now() + conf().sweep_budget_seconds)
        outcome = sweep.run()
    except Superseded as why:
        log.warning("loop.superseded", extra={"loop": loop, "term": term, "why": str(why)})
        return Outcome.SUPERSEDED
    log.info("loop.ran", extra={"loop": loop, "term": term, "outcome": outcome.value, "result": sweep.counts})
    return outcome


def _steps(loop: str) -> tuple[str, ...]:
    try:
        return registry.get_loop(loop).steps
    except NotFound:
        return ("leadership.execution.refuse_unknown",)


def refuse_unknown() -> Progress:
    """The step of a loop that this code does not know: operators must see that another version sent it."""
    raise ImproperlyConfigured("this qcluster's code has no such loop: it is older or newer than the leader's")


def insist(call: Callable[[], T]) -> T:
    """Repeat over a restart of the database: an answer that is lost would stop this loop until it counts as silent."""
    for _ in range(INSIST_TIMES):
        try:
            return call()
        except (DatabaseError, InterfaceError) as error:
            if not is_outage(error):
                raise
            log.warning("loop.database_away")
            connection.close()
            time.sleep(INSIST_SECONDS)
    return call()


def worker_name() -> str:
    """Where a sweep runs, as shown to operators."""
    return f"{socket.gethostname()}:{os.getpid()}"
