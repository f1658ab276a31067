"""The web server's entry point under granian's own interface: claims wait on the event loop, all else is WSGI.

A thousand runners that wait must not hold a thread or a database connection each. This one path is served by the loop
(`runners.polling`), every other request by the WSGI application on a pool of threads, which answers directly: beside
plain WSGI in docs/benchmarks.md. Under another server `controlplane.wsgi` serves the same paths, and claims are
answered at once there.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import sys
from typing import Any

from controlplane.bridge import Bridge, LengthRequired
from controlplane.core.conf import conf
from controlplane.core.threads import Threads
from controlplane.core.wakeups import Listener, hear_here
from controlplane.core.web_sign import sign
from controlplane.wsgi import application as wsgi_application
from runners.api.longpoll import PATH, ClaimsEndpoint
from runners.polling.desk import Desk

log = logging.getLogger(__name__)

# A thread that computes gives way after this. With Python's own 5 ms the event loop waits for that long at every turn
# beside a busy view, and a new run passes several on its way to a runner.
SWITCH_SECONDS = 0.0005


class Application:
    """What granian serves: `granian --interface rsgi controlplane.rsgi:application`."""

    def __init__(self) -> None:
        self._threads = Threads(conf().web_threads, "web")
        self._bridge = Bridge(wsgi_application)
        self._claims: ClaimsEndpoint | None = None
        self._listener: Listener | None = None

    def __rsgi_init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called by each worker before it serves."""
        raise_file_limit()
        sys.setswitchinterval(SWITCH_SECONDS)
        # All that was loaded stays: without this each full collection looks through it, and every request waits.
        gc.collect()
        gc.freeze()
        loop.run_until_complete(self._open())
        on_stop(loop, self._close)

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        """One request."""
        if scope.proto != "http":
            protocol.close(1000)
            return
        if scope.path == PATH and scope.method == "POST" and self._claims is not None:
            await self._claims.serve(scope, protocol)
            return
        loop = asyncio.get_running_loop()
        try:
            body = await self._bridge.receive(scope, protocol)
        except LengthRequired:
            protocol.response_str(411, [("content-type", "text/plain")], "Say the length of the body.\n")
            return
        await self._threads.run(lambda: self._bridge.serve(loop, scope, protocol, body))

    async def _open(self) -> None:
        desk = Desk()
        self._claims = ClaimsEndpoint(desk)
        hear_here(desk.hear)
        self._listener = Listener(desk.hear)
        self._listener.start()
        # Before the first request: where every runner is dead there is none.
        sign.begin()

    def _close(self) -> None:
        if self._listener is not None:
            self._listener.stop()
        if self._claims is not None:
            self._claims.desk.close()


def raise_file_limit() -> None:
    """Each open poll is a file; the usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def on_stop(loop: asyncio.AbstractEventLoop, call: Any) -> None:
    """Call it when this worker is told to stop, before the server waits for what is open.

    The server has set its handlers by now, and a loop keeps one for each signal: ours goes before it. Without that it
    would wait for polls of a minute, and then kill them.
    """
    handlers: Any = getattr(loop, "_signal_handlers", None)
    if handlers is None:
        log.warning("polls.not_ended_at_stop", extra={"loop": type(loop).__name__})
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        theirs = handlers.get(number)

        def both(theirs: Any = theirs) -> None:
            call()
            if theirs is not None:
                theirs._run()  # noqa: SLF001 - the handler's only way to be called

        loop.add_signal_handler(number, both)


application = Application()
