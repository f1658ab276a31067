"""The instance's containers against the ledger's tokens: what has a token is left alone, what has none is removed.

Containers are listed first and holders read then: a container that is listed had its token before, so an absent token
was freed (rule P10). In the other order a container created in between would be taken for a leftover, alive.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from admission.physical.outside import Verified, View
from runners.agent.clock import now
from runners.agent.executors.container_config import LABEL_TOKEN
from runners.agent.executors.docker_adapter import DockerAdapter, Listed, NotFound
from runners.agent.executors.docker_sweep import remove_confirmed

if TYPE_CHECKING:
    from collections.abc import Collection

    from admission.physical.results import Snapshot
    from runners.agent.physical.removing import Removals

LABEL_INSTANCE = "wharfinger.instance"
NEVER_STARTED = "0001-01-01T00:00:00Z"
VERIFY_SECONDS = 5.0
"""Who passes the gate may be a driver's own thread. What takes longer goes on beside; the next try finds it done."""
AGAIN_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Leftover:
    """A container whose token nobody knows, seen twice."""

    container: str
    token: str
    started: bool


class Leftovers:
    """Looks at the containers of one instance on one daemon."""

    def __init__(
        self, adapter: DockerAdapter, instance: str, removals: Removals, verify_seconds: float = VERIFY_SECONDS
    ) -> None:
        self._adapter = adapter
        self._instance = instance
        self._removals = removals
        self._verify_seconds = verify_seconds

    def listed(self) -> list[Listed]:
        """All containers of the instance, in any state."""
        return self._adapter.list_containers({LABEL_INSTANCE: self._instance})

    def of_token(self, token: str) -> list[Listed]:
        """Those that bear this token."""
        return self._adapter.list_containers({LABEL_INSTANCE: self._instance, LABEL_TOKEN: token})

    def find(self, read: Callable[[], Snapshot], listed: Collection[Listed] | None = None) -> list[Leftover]:
        """What is there without a token, each looked at twice: a release may have freed the token just before it was
        read, and then its container is gone by the second look."""
        suspects = _tokenless(self.listed() if listed is None else listed, read().tokens)
        looked = [(one, self._started(one.id)) for one in suspects]
        there = [(one, started) for one, started in looked if started is not None]
        if not there:
            return []
        tokens = read().tokens
        return [Leftover(one.id, _token(one), started) for one, started in there if _token(one) not in tokens]

    def remove_one(self, container: str) -> None:
        """Remove and confirm. Raises `ExecutorError` if its absence was not seen."""
        remove_confirmed(self._adapter, container)

    def remove_token(self, token: str) -> None:
        """Remove whatever bears the token until a listing shows none. Raises `ExecutorError` if that was not seen."""
        while found := self.of_token(token):
            for one in found:
                remove_confirmed(self._adapter, one.id)

    def verify(self, view: View) -> Verified:
        """See `admission.physical.outside.Verify`."""
        until, pause = now() + self._verify_seconds, threading.Event()
        seen: set[str] = set()
        while True:
            suspects = {one.id for one in _tokenless(self.listed(), view.read().tokens)}
            if not suspects:
                return Verified(clean=True, removed=tuple(sorted(seen)))
            seen |= suspects
            for container in suspects:
                self._removals.begin(container, functools.partial(self.remove_one, container))
            if now() >= until:
                failures = self._removals.failures(suspects)
                problems = [failures.get(one, f"container {one[:12]} is being removed") for one in sorted(suspects)]
                return Verified(clean=False, removed=tuple(sorted(seen - suspects)), problems=tuple(problems))
            pause.wait(AGAIN_SECONDS)

    def _started(self, container: str) -> bool | None:
        """Whether it ever ran; None: it is gone."""
        try:
            state = self._adapter.inspect(container)["State"]
        except NotFound:
            return None
        return bool(state["StartedAt"] != NEVER_STARTED)


def _token(listed: Listed) -> str:
    return listed.labels.get(LABEL_TOKEN, "")


def _tokenless(listed: Collection[Listed], tokens: frozenset[str]) -> list[Listed]:
    return [one for one in listed if _token(one) not in tokens]
