"""A control plane in memory, for the driver's own logic. No guarantee is certified with it (rule G8)."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from runners.agent.artifacts import Kept, Limits
from runners.agent.assignment import Assignment, Capacity, Result, RunKey, Verdict
from runners.agent.control import ControlUnavailable, LogOffset, Superseded

if TYPE_CHECKING:
    from collections.abc import Sequence


class StubControl:
    """Hands out what is in `queue`; remembers all that was said. `fail[name] = n` lets the next n calls fail,
    `lose[name] = n` lets n calls take effect and loses their answers."""

    def __init__(self, queue: Sequence[Assignment] = ()) -> None:
        self.queue = list(queue)
        self.fail: Counter[str] = Counter()
        self.lose: Counter[str] = Counter()
        self.delay: dict[str, float] = {}
        self.verdicts: dict[RunKey, Verdict] = {}
        self.open: set[RunKey] = set()
        self.results: dict[RunKey, Result] = {}
        self.given_back: dict[RunKey, str] = {}
        self.adopted: set[RunKey] = set()
        self.logs: dict[RunKey, bytearray] = {}
        self.artifacts: dict[tuple[RunKey, str], bytes] = {}
        self.calls: list[tuple[str, int]] = []
        self.forgotten: list[RunKey] = []
        self.capacities: list[Capacity] = []
        self._answers: dict[str, list[Assignment]] = {}
        self._lock = threading.RLock()

    def _called(self, name: str, count: int) -> None:
        time.sleep(self.delay.get(name, 0))
        self.calls.append((name, count))
        if self.fail[name] > 0:
            self.fail[name] -= 1
            raise ControlUnavailable(f"{name} is made to fail")

    def _answered(self, name: str) -> None:
        if self.lose[name] > 0:
            self.lose[name] -= 1
            raise ControlUnavailable(f"the answer to {name} is made to be lost")

    def claim(self, request_id: str, capacity: Capacity) -> Sequence[Assignment]:
        self._called("claim", capacity.slots)
        with self._lock:
            self.capacities.append(capacity)
            if request_id not in self._answers:
                given, self.queue = self.queue[: capacity.slots], self.queue[capacity.slots :]
                self._answers[request_id] = given
                self.open |= {a.key for a in given}
        self._answered("claim")
        return self._answers[request_id]

    def start(self, keys: Sequence[RunKey]) -> dict[RunKey, Verdict]:
        self._called("start", len(keys))
        self._answered("start")
        return self._judge(keys)

    def heartbeat(self, keys: Sequence[RunKey]) -> dict[RunKey, Verdict]:
        self._called("heartbeat", len(keys))
        return self._judge(keys)

    def pulling(self, keys: Sequence[RunKey]) -> dict[RunKey, Verdict]:
        self._called("pulling", len(keys))
        return self._judge(keys)

    def _judge(self, keys: Sequence[RunKey]) -> dict[RunKey, Verdict]:
        return {key: self.verdicts.get(key, Verdict.OK) for key in keys if key in self.open}

    def append_log(self, key: RunKey, offset: int, data: bytes) -> int:
        self._called("append_log", len(data))
        if key not in self.open:
            raise Superseded
        stored = self.logs.setdefault(key, bytearray())
        if offset != len(stored):
            raise LogOffset(len(stored))
        stored.extend(data)
        self._answered("append_log")
        return len(stored)

    @property
    def artifact_limits(self) -> Limits:
        return Limits()

    def put_artifact(self, key: RunKey, kept: Kept) -> None:
        self._called("put_artifact", kept.size)
        if key not in self.open:
            raise Superseded
        self.artifacts[(key, kept.name)] = kept.path.read_bytes()

    def settle(self, results: Sequence[Result]) -> dict[RunKey, Verdict]:
        self._called("settle", len(results))
        with self._lock:
            for result in results:
                if result.key in self.open or self.results.get(result.key) == result:
                    self.results[result.key] = result
                    self.open.discard(result.key)
        self._answered("settle")
        return {r.key: Verdict.OK for r in results if self.results.get(r.key) == r}

    def give_back(self, keys: Sequence[RunKey], reason: str) -> None:
        self._called("give_back", len(keys))
        for key in keys:
            self.open.discard(key)
            self.given_back[key] = reason

    def pause(self) -> float | None:
        return None

    def may_wait(self) -> None:
        pass

    def stop_waiting(self) -> None:
        pass

    def forget(self, key: RunKey) -> None:
        self.forgotten.append(key)

    def goes_on(self, key: RunKey, attempt: int) -> bool:
        self._called("goes_on", 1)
        return key in self.adopted

    def thread_ends(self) -> None:
        """Nothing is held by thread."""
