"""A few threads for the blocking work of an event loop: who worked last works next.

Each thread has a database connection of its own, and each connection plans a statement anew until it has executed
it some times. Taking turns, as an executor's threads do, a quiet server would plan for ever: planning a claim takes
longer than executing it. So the one that is warm is taken, and others are started only when all are at work.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")

Call = Callable[[], None]


class Threads:
    """At most `count` of them. Daemon threads: a call that never ends must not keep a stopped process alive."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._started = 0
        self._idle: list[SimpleQueue[Call]] = []
        self._waiting: deque[Call] = deque()
        self._lock = threading.Lock()

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises, called on one of the threads. It goes on when the caller is cancelled."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def call() -> None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - handed to who waits for it; the thread takes the next call
                loop.call_soon_threadsafe(_fail, done, error)
            else:
                loop.call_soon_threadsafe(_finish, done, result)

        self._give(call)
        return await done

    def _give(self, call: Call) -> None:
        with self._lock:
            if self._idle:
                self._idle.pop().put(call)
            elif self._started < self._count:
                self._started += 1
                name = f"{self._name}-{self._started}"
                threading.Thread(target=self._serve, args=(call,), name=name, daemon=True).start()
            else:
                self._waiting.append(call)

    def _serve(self, call: Call) -> None:
        mine: SimpleQueue[Call] = SimpleQueue()
        while True:
            call()
            with self._lock:
                if self._waiting:
                    call = self._waiting.popleft()
                    continue
                self._idle.append(mine)
            call = mine.get()


def _finish(done: asyncio.Future[T], result: T) -> None:
    if not done.done():
        done.set_result(result)


def _fail(done: asyncio.Future[T], error: BaseException) -> None:
    if not done.done():
        done.set_exception(error)
