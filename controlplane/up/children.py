"""The processes of the fleet."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from controlplane.supervisor import Child
from controlplane.up.options import Options

MANAGE = str(Path(__file__).resolve().parents[2] / "manage.py")
WEB_WORKERS = 2
# Connections that one worker takes; each runner that waits holds one. Beyond that they wait in the backlog.
WEB_CONNECTIONS = 8192
# A driver first drains, then confirms that its containers are gone; killed sooner it leaves them to its successor.
DRIVER_GRACE_SECONDS = 90.0


def manage(*words: str) -> list[str]:
    """A management command as its own process."""
    return [sys.executable, MANAGE, *words]


def web(options: Options, env: Mapping[str, str]) -> Child:
    """Granian with its own interface: WSGI on threads, an event loop for the claims that wait."""
    argv = [
        sys.executable,
        "-m",
        "granian",
        *("--interface", "rsgi", "--host", "127.0.0.1", "--port", str(options.port)),
        *("--workers", str(WEB_WORKERS), "--backlog", str(WEB_CONNECTIONS), "--backpressure", str(WEB_CONNECTIONS)),
        *("--no-ws", "--log-level", "warning", "--workers-kill-timeout", "5"),
        "controlplane.rsgi:application",
    ]
    return Child("web", argv, env)


def replica(number: int, env: Mapping[str, str]) -> Child:
    """A replica with a pinned identity, so that its restart takes over what the earlier incarnation held."""
    name = f"replica-{number}"
    return Child(name, manage("replica", "--id", name), env, group="drivers", stop_grace_seconds=DRIVER_GRACE_SECONDS)


def queue_cluster(env: Mapping[str, str]) -> Child:
    """The django-q2 cluster."""
    return Child("qcluster", manage("qcluster"), env)


def runner(number: int, env: Mapping[str, str]) -> Child:
    """An agent that works over REST, as on somebody else's machine."""
    argv = [sys.executable, "-m", "runners.cli", "runner", "run"]
    return Child(f"runner-{number}", argv, env, group="drivers", stop_grace_seconds=DRIVER_GRACE_SECONDS)
