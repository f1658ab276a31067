"""One process's part in the election: looks, wins, renews, steps down, hands back.

The database decides by its own clock (statements L1 to L3); here is only when to ask, and what may be believed. Belief
begins when an accepted query's answer is in, and lasts `lease - renewal` from before that query was sent. Without
belief nothing is renewed: a holder that lost answers lets its lease run out, so that somebody leads again.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from controlplane.core.conf import conf
from controlplane.core.sql import one
from leadership import sql
from leadership.belief import Belief, now
from leadership.models import TermEnding

log = logging.getLogger(__name__)

LOOPS = "loops"
"""The role whose holder decides when gated loops run."""

RESIGN_PATIENCE_SECONDS = 5.0

Observer = Callable[[Belief | None], None]
"""Called before a belief begins or is extended, and with None after one was ended: what it notes never falls short."""


def log_belief(belief: Belief | None) -> None:
    """The observer of real replicas: with LOG_LEVEL=DEBUG, a checker can prove intervals disjoint from the log."""
    if belief is None:
        log.debug("leader.ends", extra={"clock": now()})
    else:
        log.debug("leader.believes", extra={"term": belief.term, "clock": now(), "until": belief.until})


class LeaderElector:
    """Call `tick` every `leader_tick_seconds` from one thread; ask `term` from any."""

    def __init__(self, holder: str, holder_name: str, *, role: str = LOOPS, observer: Observer | None = None) -> None:
        self._who = {"role": role, "holder": holder, "holder_name": holder_name}
        self._observe = observer or log_belief
        self._pid = os.getpid()
        self._belief: Belief | None = None
        self._held_term = 0
        self._stopped = threading.Event()
        self._compete_from = 0.0
        self._memory = threading.Lock()  # guards what is believed; held for assignments only
        self._asking = threading.Lock()  # one query at a time; held while the database answers

    def term(self) -> int | None:
        """The term that this process leads in now, or None. Costs no query."""
        belief = self._belief
        return belief.term if belief is not None and belief.holds() else None

    def tick(self) -> None:
        """One look, and what follows from it. Errors are the caller's: belief then decays by itself."""
        if os.getpid() != self._pid:
            return  # a forked child: the lease is its parent's
        with self._asking:
            if self._stopped.is_set():
                return
            if self.term() is None:
                self._look()
            else:
                self._keep()
            if self._stopped.is_set():
                self._free(TermEnding.RESIGNED)  # won after `resign` had stopped waiting

    def resign(self) -> None:
        """Hand the lease back, if it is still ours, and never compete again. Belief ends before anything is sent."""
        if os.getpid() != self._pid:
            return
        with self._memory:
            self._stopped.set()
            self._forget()
        # A query under way may still win or renew: what it holds is handed back after it.
        if not self._asking.acquire(timeout=RESIGN_PATIENCE_SECONDS):
            log.warning("leader.resign_skipped", extra={"why": "the database does not answer; the lease runs out"})
            return
        try:
            self._free(TermEnding.RESIGNED)
        finally:
            self._asking.release()

    def _look(self) -> None:
        row = one(sql.READ_LEASE, self._who)
        if (row is None or row["free"]) and now() >= self._compete_from:
            self._win()

    def _win(self) -> None:
        sent_at = now()
        row = one(sql.WIN, {**self._who, "ttl": conf().leader_lease_seconds})
        if row is None:
            return
        self._believe(row["term"], sent_at)
        log.info("leader.won", extra={**self._who, "term": row["term"]})

    def _keep(self) -> None:
        belief = self._belief
        row = one(sql.READ_LEASE, self._who)
        if belief is None:
            return
        if row is None or row["term"] != belief.term or row["holder"] != self._who["holder"]:
            self._lose(belief.term)  # a restored or emptied database: nothing of this term is left there
        elif row["step_down"]:
            self._step_down()
        elif now() >= belief.sent_at + conf().leader_renew_seconds:
            self._renew(belief.term)

    def _renew(self, term: int) -> None:
        if self.term() != term:
            return  # the look took so long that belief ran out: no renewal without belief
        sent_at = now()
        if one(sql.RENEW, {**self._who, "term": term, "ttl": conf().leader_lease_seconds}) is not None:
            self._believe(term, sent_at)
        else:
            self._lose(term)

    def _lose(self, term: int) -> None:
        with self._memory:
            self._held_term = 0
            self._forget()
        log.warning("leader.lost", extra={**self._who, "term": term})

    def _step_down(self) -> None:
        with self._memory:
            self._forget()
            # Others look every tick; who steps down leaves them the time to win, and leads again if there is nobody.
            self._compete_from = now() + conf().leader_renew_seconds
        self._free(TermEnding.STEP_DOWN)

    def _free(self, because: TermEnding) -> None:
        if not self._held_term:
            return
        freed = one(sql.RESIGN, {**self._who, "term": self._held_term, "because": because.value})
        log.info("leader.resigned", extra={**self._who, "term": self._held_term, "freed": freed is not None})
        self._held_term = 0

    def _believe(self, term: int, sent_at: float) -> None:
        settings = conf()
        with self._memory:
            self._held_term = term
            if self._stopped.is_set():
                return
            belief = Belief.from_query(term, sent_at, settings.leader_lease_seconds - settings.leader_renew_seconds)
            self._observe(belief)
            self._belief = belief

    def _forget(self) -> None:
        ended, self._belief = self._belief, None
        if ended is not None:
            self._observe(None)
