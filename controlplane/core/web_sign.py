"""The web processes' sign of life in the database: whether runners could have called at all (rule Q6).

A runner is silent because it is dead, or because nobody was there to be called. While no web process shows itself, and
for one lease after one does again, silence says nothing about any runner: nothing that runners hold is taken from
them. Any one process is enough; one that answers `/livez` and is cut off from its runners is not noticed by this.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any, Final

from django.db import close_old_connections, connection

from controlplane.core import outages
from controlplane.core.conf import conf
from controlplane.core.sql import execute

log = logging.getLogger(__name__)

NAME = "web"

# The very first sign follows no pause: nothing is held for it. Lock: the row, for this statement. Index: primary key.
SHOW: Final = """
INSERT INTO core_hold AS h (name, sign_at, taken_for, until)
VALUES (%(name)s, statement_timestamp(), NULL, statement_timestamp())
ON CONFLICT (name) DO UPDATE SET
    sign_at = statement_timestamp(),
    until = CASE WHEN h.sign_at < statement_timestamp() - make_interval(secs => %(gap)s)
                 THEN statement_timestamp() + make_interval(secs => %(length)s) ELSE h.until END
"""


def web_is_away() -> bool:
    """No web process showed itself for two heartbeats of runners, or one full lease since that is not over yet."""
    return outages.away(NAME, gap=_gap())


def show() -> None:
    """One sign of life. The first one after a pause of `gap` gives every runner a full lease to come back."""
    execute(SHOW, {"name": NAME, "gap": _gap(), "length": conf().runner_lease_seconds})


def _gap() -> float:
    return 2 * conf().runner_heartbeat_seconds


class WebSign:
    """A thread that shows the life of this process, anew after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = 0

    def begin(self) -> None:
        """Once for each process; returns at once."""
        if self._process == os.getpid():
            return
        with self._lock:
            if self._process != os.getpid():
                self._process = os.getpid()
                threading.Thread(target=self._run, name="web-sign", daemon=True).start()

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            try:
                close_old_connections()
                show()
            except Exception as error:  # noqa: BLE001 - the database is away, which the sweeps notice themselves
                log.warning("web_sign.not_shown", extra={"error": str(error)})
                connection.close()
            pause.wait(conf().runner_heartbeat_seconds / 3)


sign = WebSign()


def showing(application: Callable[..., Any]) -> Callable[..., Any]:
    """A WSGI application that shows the life of its process from its first request on."""

    def shown(*arguments: Any) -> Any:
        sign.begin()
        return application(*arguments)

    return shown
