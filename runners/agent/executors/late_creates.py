"""Creates whose reply was lost and whose container was not seen: never abandoned, but collected when it surfaces.

Such a container cannot run: nobody knows its id, so nobody starts it, and its place was fenced before it was freed. It
would only lie there. Looked for by its token for as long as a daemon could still be busy with the request (rule P13).
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from runners.agent.clock import now
from runners.agent.executors.base import ExecutorError
from runners.agent.executors.container_config import LABEL_TOKEN
from runners.agent.executors.docker_sweep import remove_all

if TYPE_CHECKING:
    from runners.agent.executors.docker_adapter import DockerAdapter

log = logging.getLogger(__name__)

WATCH_SECONDS = 900.0
LOOK_SECONDS = 5.0


class LateCreates:
    """A thread while there is something to look for."""

    def __init__(
        self, adapter: DockerAdapter, look_seconds: float = LOOK_SECONDS, watch_seconds: float = WATCH_SECONDS
    ) -> None:
        self._adapter = adapter
        self._look_seconds = look_seconds
        self._watch_seconds = watch_seconds
        self._until: dict[str, float] = {}
        self._busy = False
        self._lock = threading.Lock()

    def watch(self, token: str) -> None:
        """Look for a container with this token until it came, or could not come any more."""
        with self._lock:
            self._until[token] = now() + self._watch_seconds
            if self._busy:
                return
            self._busy = True
        threading.Thread(target=self._run, name="late-creates", daemon=True).start()

    def _run(self) -> None:
        pause = threading.Event()
        while self._remaining():
            pause.wait(self._look_seconds)
            for token in list(self._until):
                self._look(token)

    def _remaining(self) -> bool:
        moment = now()
        with self._lock:
            self._until = {token: until for token, until in self._until.items() if moment < until}
            self._busy = bool(self._until)
            return self._busy

    def _look(self, token: str) -> None:
        try:
            found = remove_all(self._adapter, {LABEL_TOKEN: token})
        except ExecutorError as error:
            log.warning("a container whose create reply was lost is still looked for: %s", error)
            return
        if found:
            log.warning("removed a container that came after its create reply was lost, token %s", token)
            with self._lock:
                self._until.pop(token, None)
