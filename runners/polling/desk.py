"""The desk: holds the open polls of one process, wakes as many as there is work, and tells them what concerns them.

Runs on one event loop. One look at the database at a time serves all polls (`runners.services.polls`), at once when
something was announced, every `WATCH_SECONDS` in any case: what is announced only makes it sooner (rule G9).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from django.db import DatabaseError, InterfaceError, close_old_connections, connection

from admission.engine import Envelope
from controlplane.core.errors import Conflict, DomainError, TryLater
from controlplane.core.sql import Row
from controlplane.core.threads import Threads
from runners.polling.sharing import Wish, share
from runners.services.claims import Claimed, claim_with_secrets
from runners.services.fleet import RunnerIdentity, find_runners, refuse_unfenced, runner_driver
from runners.services.polls import Asked, Question, Seen, look

T = TypeVar("T")

log = logging.getLogger(__name__)

THREADS = 4
MOST_POLLS = 10_000
MOST_A_RUNNER = 4
WATCH_SECONDS = 0.5
HURRIED_WATCH_SECONDS = 0.1
REPLAY_SECONDS = 5.0
OUTAGE_SECONDS = 1.0
MOST_GAP_SECONDS = 0.05
FUTILE_SECONDS = (0.5, 2.0)


class TokenDead(Exception):
    """The runner's token is unknown or revoked."""


class Closing(Exception):
    """This web process stops; another one, or its successor, takes the poll."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a poll ended: `claimed` null when there was nothing; `held`, whether it waited for that."""

    runner: RunnerIdentity
    claimed: list[Claimed] | None
    held: bool


class _Poll:
    """One open poll. Parked, or being looked at, or being claimed for."""

    __slots__ = ("asked", "began", "claiming", "future", "kept", "patient", "runner", "wish")

    def __init__(self, asked: Asked, kept: float | None, future: asyncio.Future[Outcome]) -> None:
        self.asked = asked
        self.kept = kept
        self.future = future
        self.runner: RunnerIdentity | None = None
        self.wish: Wish[_Poll] | None = None
        self.patient = True
        self.claiming = False
        self.began = time.monotonic()

    def know(self, runner: RunnerIdentity) -> None:
        """Who asks; what it could have is worked out once, not at every look."""
        self.runner = runner
        slots = self.asked.wants(runner)
        self.wish = Wish(self, self.asked.profile(runner), slots) if slots else None

    @property
    def key(self) -> tuple[bytes, str]:
        """What names the claim."""
        return self.asked.hash, self.asked.request_id

    def end(self, claimed: list[Claimed] | None, runner: RunnerIdentity) -> None:
        """Answer it, unless it has gone."""
        if not self.future.done():
            self.future.set_result(Outcome(runner, claimed, held=self.patient))

    def fail(self, error: Exception) -> None:
        """Refuse it, unless it has gone."""
        if not self.future.done():
            self.future.set_exception(error)


class Desk:
    """All polls of this process. Everything but `hear` is called on the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = Threads(THREADS, "polls")
        self._arrived: list[_Poll] = []
        self._parked: dict[_Poll, None] = {}
        self._open: dict[bytes, list[_Poll]] = {}
        self._wanted = asyncio.Event()
        self._heard = False
        self._closing = False
        self._spoken_for: set[int] = set()
        self._claiming: dict[tuple[bytes, str], list[_Poll]] = {}
        """Claims under way, and the polls that ask for the same again: they take up its answer."""
        self._futile: dict[int, tuple[float, float]] = {}
        self._watched_at = self._replayed_at = float("-inf")
        self._hurry: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._begin(self._work())

    # -- for the server ---------------------------------------------------------------------------------------------

    @property
    def open_polls(self) -> int:
        """How many wait."""
        return sum(len(polls) for polls in self._open.values())

    async def poll(self, asked: Asked, wait_seconds: float, kept_fence_seconds: float | None = None) -> Outcome:
        """Wait for runs, or for something that concerns the runner. Cancel it when the caller has gone.

        Raises:
            TokenDead, Closing, TryLater, Conflict, DatabaseError.
        """
        poll = _Poll(asked, kept_fence_seconds, self._loop.create_future())
        self._admit(poll)
        timer = self._loop.call_later(wait_seconds, self._expire, poll)
        try:
            return await poll.future
        finally:
            timer.cancel()
            self._leave(poll)

    async def is_alive(self, token: bytes) -> bool:
        """Whether the token with this hash opens, for a call that asks for nothing which could wait."""
        return bool(await self._in_thread(find_runners, [token]))

    def hear(self) -> bool:
        """Something was announced; whether somebody waits here for it. From any thread."""
        if not self._heard:
            self._heard = True
            self._loop.call_soon_threadsafe(self._wanted.set)
        return bool(self._parked)

    def close(self) -> None:
        """End every poll; what is just being claimed is answered first."""
        self._closing = True
        for polls in list(self._open.values()):
            for poll in list(polls):
                if not poll.claiming:
                    poll.fail(Closing())
        self._wanted.set()

    # -- coming and going -------------------------------------------------------------------------------------------

    def _admit(self, poll: _Poll) -> None:
        mine = self._open.get(poll.asked.hash, [])
        if self._closing:
            raise Closing
        if self.open_polls >= MOST_POLLS:
            raise TryLater(f"This process holds {MOST_POLLS} polls already.", retry_after_seconds=5)
        for other in mine:
            if other.asked.request_id == poll.asked.request_id and not other.claiming:
                # The same claim again: whoever asked first has lost its connection, and must not take the answer.
                other.fail(Conflict("The same claim was asked again.", code="poll_superseded"))
        if len(mine) >= MOST_A_RUNNER:
            raise TryLater(f"This runner has {len(mine)} polls open here.", retry_after_seconds=5)
        self._open.setdefault(poll.asked.hash, []).append(poll)
        self._arrived.append(poll)
        self._wanted.set()

    def _leave(self, poll: _Poll) -> None:
        self._parked.pop(poll, None)
        mine = self._open[poll.asked.hash]
        mine.remove(poll)
        if not mine:
            del self._open[poll.asked.hash]

    def _expire(self, poll: _Poll) -> None:
        if poll in self._parked and poll.runner is not None:
            poll.end(None, poll.runner)
        # Else it is being looked at or claimed for, and ends when that is done.
        poll.patient = False

    def _park(self, poll: _Poll) -> None:
        if poll.future.done() or poll.runner is None:
            return
        if self._closing:
            poll.fail(Closing())
        elif poll.patient:
            self._parked[poll] = None
        else:
            poll.end(None, poll.runner)

    # -- looking ----------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        took = 0.0
        while not self._closing:
            await self._until_due(took)
            if not self._open:
                continue
            began = time.monotonic()
            arrived, question = self._compose(began)
            try:
                seen = await self._in_thread(look, question)
                self._apply(arrived, seen)
            except Exception as error:
                # Whatever it is, the desk must look again, or every poll would wait in vain.
                log.exception("polls.look_failed", extra={"polls": self.open_polls})
                for poll in arrived:
                    poll.fail(error)
                await asyncio.sleep(OUTAGE_SECONDS)
                continue
            took = time.monotonic() - began

    async def _until_due(self, took: float) -> None:
        """Until something is wanted, or it is time to look in any case; a slow look is followed by a pause as long."""
        await asyncio.sleep(min(took, MOST_GAP_SECONDS))
        watch = None
        if self._open:
            pause = self._watched_at + WATCH_SECONDS - time.monotonic()
            watch = self._loop.call_later(max(0.0, pause), self._wanted.set)
        await self._wanted.wait()
        if watch is not None:
            watch.cancel()
        self._wanted.clear()

    def _compose(self, now: float) -> tuple[list[_Poll], Question]:
        heard, self._heard = self._heard, False
        arrived, self._arrived = [poll for poll in self._arrived if not poll.future.done()], []
        # Not before new work: whom else it concerns is looked up a moment later, for all that is announced till then.
        patience = 2.0 if heard else 1.0
        watch = now - self._watched_at >= patience * WATCH_SECONDS
        if watch:
            self._watched_at = now
        if heard and self._hurry is None:
            self._hurry = self._loop.call_later(HURRIED_WATCH_SECONDS, self._watch_now)
        replay = now - self._replayed_at >= patience * REPLAY_SECONDS
        if replay:
            self._replayed_at = now
        parked = self._known() if watch or replay else []
        question = Question(
            arrived=[poll.asked for poll in arrived],
            watched={poll.asked.hash: runner.mode for poll, runner in parked} if watch else {},
            claims=[(runner.id, poll.asked.request_id) for poll, runner in parked] if replay else [],
            wanted=_sum_by_profile(self._wishes()),
            announced=heard,
        )
        return arrived, question

    def _known(self) -> list[tuple[_Poll, RunnerIdentity]]:
        return [(poll, poll.runner) for poll in self._parked if poll.runner is not None]

    def _watch_now(self) -> None:
        self._hurry = None
        self._watched_at = float("-inf")
        self._wanted.set()

    def _wishes(self) -> list[Wish[_Poll]]:
        return [poll.wish for poll in self._parked if poll.wish is not None]

    # -- acting on what was seen ------------------------------------------------------------------------------------

    def _apply(self, arrived: list[_Poll], seen: Seen) -> None:
        for poll in [p for p in self._parked if p.asked.hash in seen.concerned]:
            self._parked.pop(poll)
            runner = seen.runners.get(poll.asked.hash)
            if runner is None:
                poll.fail(TokenDead())
            else:
                poll.end(None, runner)
        for poll in arrived:
            self._receive(poll, seen)
        for poll, runner in self._known() if seen.answered else ():
            if (runner.id, poll.asked.request_id) in seen.answered:
                self._start_claim(poll, [], poll.asked.wants(runner))
        self._wake(seen)
        for poll in [p for p in self._parked if not p.patient and p.runner is not None]:
            self._parked.pop(poll)
            self._park(poll)

    def _receive(self, poll: _Poll, seen: Seen) -> None:
        runner = seen.runners.get(poll.asked.hash)
        if runner is None:
            poll.fail(TokenDead())
            return
        poll.know(runner)
        try:
            refuse_unfenced(poll.kept)
        except DomainError as error:
            poll.fail(error)
            return
        if runner.cancels or runner.draining:
            # It must hear of that now; but runs that fit, and an answer that waits, go before it.
            poll.patient = False
        if poll.key in self._claiming:
            self._claiming[poll.key].append(poll)
        elif not poll.future.done():
            self._parked[poll] = None

    def _wake(self, seen: Seen) -> None:
        now = time.monotonic()
        self._futile = {run: entry for run, entry in self._futile.items() if now < entry[0] + FUTILE_SECONDS[1]}
        passed_over = self._spoken_for | {run for run, (until, _) in self._futile.items() if now < until}
        for poll, runs in share(self._wishes(), seen.suitable.runs, passed_over).items():
            self._start_claim(poll, runs, len(runs), seen.suitable.only_flow())

    # -- claiming ---------------------------------------------------------------------------------------------------

    def _start_claim(self, poll: _Poll, runs: list[int], slots: int, flows: Sequence[Row] = ()) -> None:
        self._parked.pop(poll, None)
        poll.claiming = True
        self._spoken_for.update(runs)
        self._claiming.setdefault(poll.key, [])
        self._begin(self._claim(poll, runs, slots, flows))

    async def _claim(self, poll: _Poll, runs: list[int], slots: int, flows: Sequence[Row]) -> None:
        runner = poll.runner
        assert runner is not None  # noqa: S101 - only polls of known runners are parked
        asked = poll.asked
        envelope = Envelope(slots, asked.memory_mib, asked.cpu)
        claim = partial(claim_with_secrets, judged=bool(runs), seen=flows, token=asked.hash)
        try:
            claimed = await self._in_thread(claim, runner_driver(runner), asked.request_id, envelope)
        except (DatabaseError, InterfaceError) as error:
            poll.fail(error)
            return
        except Exception as error:  # noqa: BLE001 - answered as a failure and logged there; the desk must go on
            poll.fail(error)
            return
        finally:
            poll.claiming = False
            self._spoken_for.difference_update(runs)
            for again in self._claiming.pop(poll.key, []):
                if not again.future.done():
                    self._start_claim(again, [], 0)
        if claimed is not None:
            poll.end(claimed, runner)
            return
        self._note_futile(runs)
        self._park(poll)

    def _note_futile(self, runs: list[int]) -> None:
        """Somebody else was faster, or the reading was kinder than the engine: not again at once."""
        now = time.monotonic()
        for run in runs:
            _, pause = self._futile.get(run, (0.0, FUTILE_SECONDS[0] / 2))
            pause = min(2 * pause, FUTILE_SECONDS[1])
            self._futile[run] = (now + pause, pause)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        # The loop itself keeps weak references only.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _in_thread(self, call: Callable[..., T], *arguments: object) -> T:
        return await self._threads.run(lambda: _with_connection(call, *arguments))


def _with_connection(call: Callable[..., T], *arguments: object) -> T:
    close_old_connections()
    try:
        return call(*arguments)
    except (DatabaseError, InterfaceError):
        connection.close()
        raise


def _sum_by_profile(wishes: list[Wish[_Poll]]) -> dict[Any, int]:
    wanted: dict[Any, int] = {}
    for wish in wishes:
        wanted[wish.profile] = wanted.get(wish.profile, 0) + wish.slots
    return wanted
