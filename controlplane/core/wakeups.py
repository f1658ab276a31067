"""Saying and hearing that something changed: an accelerator, never the truth (rule G9).

Whoever commits something that may let somebody start, stop or settle earlier calls `announce`. Nothing depends on it:
those who wait also look by themselves. A thread of its own sends the NOTIFY, for the commits of notifying transactions
wait for each other; however often something is announced, it sends at most one in `GAP_SECONDS`.

LISTEN is session state, which a transaction pooler does not keep: `DATABASE_DIRECT_URL` names the server itself.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

import psycopg
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, close_old_connections, connections, transaction

from controlplane.core.environment import PATIENCE
from controlplane.core.sql import execute

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
    """One thread for each process, started by the first word, anew after a fork."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._lock = threading.Lock()
        self._process = 0

    def ask(self) -> None:
        """Send one soon. Returns at once."""
        self._asked.set()
        if self._process != os.getpid():
            self._begin()

    def _begin(self) -> None:
        with self._lock:
            if self._process != os.getpid():
                self._process = os.getpid()
                threading.Thread(target=self._run, name="announcer", daemon=True).start()

    def _run(self) -> None:
        gap = threading.Event()
        while True:
            self._asked.wait()
            # Cleared before it is sent: what is asked for meanwhile is sent again.
            self._asked.clear()
            try:
                close_old_connections()
                execute(NOTIFY, {"channel": CHANNEL})
            except Exception as error:  # noqa: BLE001 - whoever waits looks by himself; said, so that it is not a riddle
                log.warning("wakeups.not_sent", extra={"error": str(error)})
                connections[DEFAULT_DB_ALIAS].close()
            gap.wait(GAP_SECONDS)


_announcer = _Announcer()
_hearers: list[Callable[[], None]] = []


def announce() -> None:
    """After the commit of the surrounding transaction, if there is one. Costs the caller nothing worth counting."""
    transaction.on_commit(_announce)


def _announce() -> None:
    for hear in _hearers:
        hear()
    _announcer.ask()


def hear_here(hear: Callable[[], None]) -> None:
    """Be told of what this very process announces, without the way over the database. From any thread; quickly."""
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

    def __init__(self, hear: Callable[[], None]) -> None:
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
            for _ in session.notifies(timeout=ALIVE_SECONDS):
                self._hear()
                if self._stopping.is_set():
                    return
            # A server that vanished without a word is noticed here.
            session.execute("SELECT 1")
