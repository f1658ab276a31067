"""Saying and hearing that something changed: an accelerator, never the truth (rule G9).

Whoever commits something that may let somebody start, stop or settle earlier calls `announce`. Nothing depends on it:
those who wait also look by themselves. The NOTIFY is a transaction of its own after that commit, for the commits of
notifying transactions wait for each other; however often something is announced, a process sends at most one in
`GAP_SECONDS`.

LISTEN is session state, which a transaction pooler does not keep: `DATABASE_DIRECT_URL` names the server itself.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import psycopg
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections, transaction

from controlplane.core.environment import PATIENCE

log = logging.getLogger(__name__)

CHANNEL = "wharfinger"
OF_THE_CLIENT = frozenset({"prepare_threshold", "pool", "isolation_level", "server_side_binding", "assume_role"})
"""Options of a connection that mean something to psycopg or Django, not to the server's library."""

GAP_SECONDS = 0.01
ALIVE_SECONDS = 5.0
MOST_PAUSE_SECONDS = 30.0

# No payload: equal notifications of one transaction are one, and who hears looks at the rows anyway.
# Parameters: the channel. Lock: the notification queue's, at commit.
NOTIFY = "SELECT pg_notify(%(channel)s, '')"


class _Announcer:
    """Sends by the thread that asks; or soon, by one of its own.

    A thread that is woken for it waits for the interpreter first, beside the one that goes on: 1 ms later. The session
    is not Django's: each thread has its own of those, and what is sent here is none of its request's statements.
    """

    def __init__(self) -> None:
        self._process = 0
        self._beginning = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._asked = threading.Event()
        self._sending = threading.Lock()
        self._session: psycopg.Connection[Any] | None = None
        self._sent_at = float("-inf")

    @property
    def backend(self) -> int | None:
        """The server process by which this one sends."""
        session = self._session if self._process == os.getpid() else None
        return session.info.backend_pid if session is not None and not session.closed else None

    def ask(self, *, at_once: bool) -> None:
        """Send one, at once or within `GAP_SECONDS`."""
        if self._process != os.getpid():
            self._begin()
        if not (at_once and self._send_at_once()):
            self._asked.set()

    def _begin(self) -> None:
        """In this process for the first time, or anew after a fork: neither session nor locks are the parent's."""
        with self._beginning:
            if self._process != os.getpid():
                self._reset()
                self._process = os.getpid()
                threading.Thread(target=self._run, name="announcer", daemon=True).start()

    def _send_at_once(self) -> bool:
        if self._session is None or monotonic() - self._sent_at < GAP_SECONDS:
            return False
        if not self._sending.acquire(blocking=False):
            return False
        try:
            self._asked.clear()
            return self._send()
        finally:
            self._sending.release()

    def _run(self) -> None:
        gap = threading.Event()
        while True:
            self._asked.wait()
            gap.wait(GAP_SECONDS)
            # Cleared before it is sent: what is asked for meanwhile is sent again.
            self._asked.clear()
            with self._sending:
                # The session may have died since it was used last: then once more, on another.
                _ = self._send() or self._send()

    def _send(self) -> bool:
        """False: it was not sent; whoever waits looks by himself."""
        self._sent_at = monotonic()
        try:
            if self._session is None:
                given = connections[DEFAULT_DB_ALIAS].get_connection_params()
                self._session = psycopg.connect(**{**given, "autocommit": True})
            self._session.execute(NOTIFY, {"channel": CHANNEL})
        except Exception as error:  # noqa: BLE001 - what it was called for is committed; said, so that it is no riddle
            log.warning("wakeups.not_sent", extra={"error": str(error)})
            if self._session is not None:
                self._session.close()
            self._session = None
            return False
        return True


_announcer = _Announcer()
_hearers: list[Callable[[], bool]] = []


def announce() -> None:
    """After the commit of the surrounding transaction, if there is one. Costs the caller nothing worth counting."""
    transaction.on_commit(_announce)


def _announce() -> None:
    # Who waits in this process has a head start: if all processes went for one run at once, all but one in vain, they
    # would only be in its way.
    waiting = [hear() for hear in _hearers]
    _announcer.ask(at_once=not any(waiting))


def hear_here(hear: Callable[[], bool]) -> None:
    """Be told of what this very process announces, without the way over the database. From any thread; quickly.

    `hear` answers whether somebody waits here.
    """
    _hearers.append(hear)


def listening_address() -> str:
    """Where LISTEN reaches the server itself."""
    if direct := os.environ.get("DATABASE_DIRECT_URL"):
        # What the address itself says wins.
        return psycopg.conninfo.make_conninfo("", **{**PATIENCE, **psycopg.conninfo.conninfo_to_dict(direct)})
    given = settings.DATABASES[DEFAULT_DB_ALIAS]
    names = {"HOST": "host", "PORT": "port", "NAME": "dbname", "USER": "user", "PASSWORD": "password"}
    parts = {libpq: str(given[name]) for name, libpq in names.items() if given.get(name)}
    # As every other connection: by the same certificates, and no more patient with a server that vanished.
    options = {name: value for name, value in given["OPTIONS"].items() if name not in OF_THE_CLIENT}
    return psycopg.conninfo.make_conninfo("", **{**PATIENCE, **options, **parts})


class Listener:
    """A thread that hears what any process announces, and calls `hear` then. Survives restarts of the database."""

    def __init__(self, hear: Callable[[], object]) -> None:
        self._hear = hear
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """No further call. Returns at once."""
        self._stopping.set()

    def _run(self) -> None:
        pause = 1.0
        while not self._stopping.is_set():
            try:
                with psycopg.connect(listening_address(), autocommit=True) as session:
                    session.execute(f"LISTEN {CHANNEL}".encode())
                    pause = 1.0
                    self._listen(session)
            except psycopg.Error as error:
                log.warning("wakeups.not_heard", extra={"error": str(error)})
            if self._stopping.wait(pause):
                return
            pause = min(2 * pause, MOST_PAUSE_SECONDS)

    def _listen(self, session: psycopg.Connection[object]) -> None:
        # What was said before we listened was not heard.
        self._hear()
        while not self._stopping.is_set():
            for notification in session.notifies(timeout=ALIVE_SECONDS):
                # Who is told by `hear_here` has heard what this process said. Behind a pooler it is heard twice.
                if self._hear not in _hearers or notification.pid != _announcer.backend:
                    self._hear()
                if self._stopping.is_set():
                    return
            # A server that vanished without a word is noticed here.
            session.execute("SELECT 1")
