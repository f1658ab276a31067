"""HAProxy in front of the web processes: it looks at /readyz, and never sends a request a second time."""

from __future__ import annotations

import csv
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.fencing.world import until

BINARY = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

# Only a connection that was never made is tried again, and then on the other server: a claim or a result that was
# sent once may have been accepted, and its repeat is the agent's to decide.
CONFIGURATION = """
global
    maxconn 2000
    stats socket {folder}/haproxy.sock mode 600

defaults
    mode http
    timeout connect 2s
    timeout client 75s
    timeout server 75s
    timeout check 2s
    retries 3
    retry-on conn-failure
    option redispatch 1

frontend fleet
    bind 127.0.0.1:{port}
    default_backend web

backend web
    balance roundrobin
    option httpchk
    http-check send meth GET uri /readyz ver HTTP/1.1 hdr Host 127.0.0.1
    http-check expect status 200
    default-server inter 500ms fall 2 rise 1
{servers}
"""


@dataclass(frozen=True, slots=True)
class Balancer:
    """A running HAProxy."""

    port: int
    folder: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def figures(self) -> dict[str, int]:
        """Requests that went to the web processes; attempts to connect that failed, and went to the other one."""
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(self.folder / "haproxy.sock"))
            asking.sendall(b"show stat\n")
            text = b"".join(iter(lambda: asking.recv(65536), b"")).decode()
        rows = {row["svname"]: row for row in csv.DictReader(text.lstrip("# ").splitlines()) if row["pxname"] == "web"}
        whole = rows["BACKEND"]
        return {
            "requests": int(whole["req_tot"]),
            "redispatched": int(whole["wredis"]),
            "answered_5xx": int(whole["hrsp_5xx"]),
        }


@contextmanager
def haproxy(folder: Path, ports: list[int]) -> Iterator[Balancer]:
    """In front of the web processes on these ports."""
    assert BINARY is not None, "HAProxy is not installed; deploy/test-machine.sh does it"
    port = free_port()
    servers = "\n".join(f"    server web{number} 127.0.0.1:{own} check" for number, own in enumerate(ports))
    file = folder / "haproxy.cfg"
    file.write_text(CONFIGURATION.format(folder=folder, port=port, servers=servers))
    with (folder / "haproxy.log").open("wb") as log:
        process = subprocess.Popen([BINARY, "-db", "-f", str(file)], stdout=log, stderr=log)
    try:
        until(lambda: _listens(port), (folder / "haproxy.log").read_text)
        yield Balancer(port, folder)
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
