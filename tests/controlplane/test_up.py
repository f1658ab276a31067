"""The whole fleet, as one command, with real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 170


def demo_log(home: Path) -> str:
    log = home / "logs/demo.log"
    return log.read_text()[-3000:] if log.exists() else "(no demo.log)"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="wharfinger-up."))
    place.chmod(0o711)
    yield place / "home"
    shutil.rmtree(place)


def up(home: Path, *words: str) -> subprocess.Popen[str]:
    hidden = ("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "DJANGO_SETTINGS_MODULE")
    env = {k: v for k, v in os.environ.items() if k not in hidden and not k.startswith("PYTEST")}
    argv = [sys.executable, "manage.py", "up", "--port", str(free_port()), *words]
    return subprocess.Popen(
        argv,
        cwd=ROOT,
        env={**env, "WHARFINGER_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def lines(text: str, event: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [line for line in found if line["event"] == event]


def processes_of(home: Path) -> list[str]:
    """Whoever has the home in its command line or environment: servers, children, workers."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if str(home).encode() in text:
                found.append((entry / "comm").read_text().strip())
    return found


def until(condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


@pytest.mark.rule("X1", "X2", "G10")
@pytest.mark.parametrize("executor", ["process", "docker"])
def test_one_command_runs_the_demo_to_its_known_end_and_leaves_nothing(home: Path, executor: str) -> None:
    problems = {"process": 164, "docker": 6}[executor]
    running = up(home, "--once", "--json", "--executor", executor, "--problems", str(problems))
    out, err = running.communicate(timeout=PATIENCE)

    assert running.returncode == 0, err[-2000:] + demo_log(home)
    summary = json.loads(out)
    assert summary["as_expected"] is True
    assert summary["runs"] == 3 * (problems + 12)
    assert (summary["conserved"], summary["violations"], summary["unexpected"]) == (True, [], [])
    assert set(summary["restarts"].values()) == {0}
    for slug, quota in {"azure": 2, "coral": 4}.items():
        tenant = summary["tenants"][slug]
        assert tenant["seen"] == {"succeeded": problems, "failed": 10, "timed_out": 2}
        assert tenant["highest_history"] == tenant["highest_observed"] == quota
        assert executor == "process" or 1 <= tenant["highest_containers"] <= quota
    assert processes_of(home) == []


@pytest.mark.rule("X2")
def test_ctrl_c_stops_everything_in_the_middle_and_a_killed_replica_is_reported_and_restarted(home: Path) -> None:
    running = up(home, "--executor", "process")
    assert running.stderr is not None
    seen = ""
    child = 0
    try:
        while '"long_run"' not in seen:
            seen += running.stderr.readline()
        assert by_hand(seen) == (0, "Conserved: every counter equals the sum of its permits.\n")
        until(lambda: "replica-1" in (home / "logs/replica-1.log").read_text())
        child = next(pid for pid in children(running.pid) if b"--id\0replica-1\0" in cmdline(pid))
        os.kill(child, signal.SIGKILL)
        while '"died"' not in seen:
            seen += running.stderr.readline()
        until(lambda: any(b"--id\0replica-1\0" in cmdline(pid) for pid in children(running.pid) if pid != child))
    finally:
        os.kill(running.pid, signal.SIGINT)
        _, rest = running.communicate(timeout=PATIENCE)
    died = lines(seen + rest, "child")[0]
    assert (died["child"], died["exit_code"]) == ("replica-1", -9)
    assert running.returncode == 0
    assert processes_of(home) == []
    assert not (home / "environment").exists()


def by_hand(said: str) -> tuple[int, str]:
    """What `up` said to type in another terminal, typed in one that knows nothing else."""
    command = lines(said, "by_hand")[0]["text"].partition(": ")[2]
    done = subprocess.run(["sh", "-c", command], env={"PATH": os.defpath}, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def test_wrong_options_are_refused_before_anything_starts(home: Path) -> None:
    for words, what in (
        (("--replicas", "0", "--runners", "0"), "nothing would ever be executed"),
        (("--replicas", "99"), "--replicas must be from 0 to"),
        (("--once", "--no-demo"), "--no-demo"),
        (("--problems", "165"), "--problems must be from 0 to 164"),
    ):
        running = up(home, *words)
        _, err = running.communicate(timeout=60)
        assert running.returncode == 1
        assert what in err
    assert not home.exists()


def test_a_taken_port_is_refused_with_what_to_do(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        running = up(home, "--port", str(taken.getsockname()[1]))
        _, err = running.communicate(timeout=60)
    assert running.returncode == 1
    assert "is taken" in err
    assert "--port" in err


@pytest.mark.rule("X2")
def test_a_killed_database_is_started_anew_and_the_demo_still_ends_as_it_must(home: Path) -> None:
    running = up(home, "--once", "--json", "--executor", "process", "--problems", "40")
    assert running.stderr is not None
    seen = ""
    while '"running": 2' not in seen:
        seen += running.stderr.readline()
    postmaster = int(next(home.rglob("postmaster.pid")).read_text().split()[0])
    os.kill(postmaster, signal.SIGKILL)
    out, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err[-2000:] + demo_log(home)
    summary = json.loads(out)
    assert summary["as_expected"] is True
    assert summary["restarts"]["postgres"] == 1
    assert lines(seen + err, "child")[0]["child"] == "postgres"
    assert processes_of(home) == []
