"""The supervisor with real processes: deaths are seen, restarts are spaced, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane import supervisor as module
from controlplane.processes import ProcessError, guarded
from controlplane.supervisor import Child, Event, Happened, Restart, Supervisor, back_off

ENVIRONMENT = {"PATH": os.environ["PATH"]}


class Watched:
    """A supervisor with the events it reported."""

    def __init__(self, directory: Path) -> None:
        self.events: list[Event] = []
        self.supervisor = Supervisor(directory, self.events.append)

    def until(self, true: Callable[[], bool], seconds: float = 15.0) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, f"did not happen within {seconds} s; events: {self.events}"
            self.supervisor.tick()
            time.sleep(0.02)

    def kinds(self, child: str) -> list[Happened]:
        return [event.happened for event in self.events if event.child == child]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(tmp_path / "logs")
    yield watched
    watched.supervisor.stop()


@pytest.fixture
def quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_DELAY_SECONDS", 0.05)


def shell(name: str, script: str, **options: object) -> Child:
    return Child(name, ["bash", "-c", script], ENVIRONMENT, **options)


def gone(pid: int) -> bool:
    """Tell whether a process is gone; a zombie that its new parent has not reaped yet counts as gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_killed_child_is_reported_restarted_and_counted(watched: Watched, quick_restarts: None) -> None:
    watched.supervisor.add(shell("replica", "exec sleep 60"))
    first = watched.supervisor.pids["replica"]
    os.kill(first, signal.SIGKILL)
    watched.until(lambda: watched.supervisor.restarts["replica"] == 1)
    assert watched.kinds("replica") == [Happened.STARTED, Happened.DIED, Happened.STARTED]
    died = watched.events[1]
    assert (died.pid, died.exit_code, died.restarts) == (first, -signal.SIGKILL, 0)
    assert watched.supervisor.pids["replica"] != first


def test_a_dead_leader_leaves_no_process_of_its_group(watched: Watched, tmp_path: Path, quick_restarts: None) -> None:
    note = tmp_path / "worker"
    watched.supervisor.add(shell("qcluster", f"sleep 60 & echo $! > {note}; wait"))
    watched.until(lambda: note.exists() and bool(note.read_text().strip()))
    worker = int(note.read_text())
    os.kill(watched.supervisor.pids["qcluster"], signal.SIGKILL)
    watched.until(lambda: Happened.DIED in watched.kinds("qcluster"))
    watched.until(lambda: gone(worker))


def test_restarts_are_spaced_from_one_to_thirty_seconds_with_jitter() -> None:
    for failures, longest in [(1, 1.0), (2, 2.0), (5, 16.0), (6, 30.0), (1_000, 30.0)]:
        delays = [back_off(failures) for _ in range(200)]
        assert longest / 2 <= min(delays) < max(delays) <= longest


def test_a_child_that_keeps_dying_is_restarted_ever_later(watched: Watched, quick_restarts: None) -> None:
    watched.supervisor.add(shell("broken", "exit 3"))
    watched.until(lambda: watched.supervisor.restarts["broken"] >= 3)
    delays = [event.delay_seconds or 0.0 for event in watched.events if event.happened is Happened.DIED]
    assert delays[2] > delays[0]
    assert {event.exit_code for event in watched.events if event.happened is Happened.DIED} == {3}


@pytest.mark.parametrize(
    ("restart", "script", "again"),
    [
        (Restart.NEVER, "exit 1", False),
        (Restart.ON_FAILURE, "exit 0", False),
        (Restart.ON_FAILURE, "exit 1", True),
        (Restart.ALWAYS, "exit 0", True),
    ],
)
def test_the_policy_decides_whether_it_comes_back(
    watched: Watched, quick_restarts: None, restart: Restart, script: str, again: bool
) -> None:
    watched.supervisor.add(shell("job", script, restart=restart))
    watched.until(lambda: len(watched.kinds("job")) >= 2)
    assert watched.kinds("job")[1] is (Happened.DIED if again else Happened.ENDED)


def test_children_are_stopped_in_reverse_order_and_asked_first(watched: Watched) -> None:
    for name in ("web", "replica", "runner"):
        watched.supervisor.add(shell(name, "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"))
    for name in ("web", "replica", "runner"):
        watched.until(lambda name=name: "up" in watched.supervisor.log_path(name).read_text())
    watched.supervisor.stop()
    stopped = [event.child for event in watched.events if event.happened is Happened.STOPPED]
    assert stopped == ["runner", "replica", "web"]
    assert all("bye" in watched.supervisor.log_path(name).read_text() for name in stopped)
    assert watched.supervisor.pids == {}


def test_one_that_does_not_listen_is_killed_with_its_group(watched: Watched, tmp_path: Path) -> None:
    note = tmp_path / "worker"
    script = f"trap '' TERM; sleep 60 & echo $! > {note}; while :; do sleep 0.05; done"
    watched.supervisor.add(shell("deaf", script, stop_grace_seconds=0.3))
    watched.until(lambda: note.exists() and bool(note.read_text().strip()))
    watched.supervisor.stop()
    assert watched.kinds("deaf")[-1] is Happened.KILLED
    watched.until(lambda: gone(int(note.read_text())))


def test_a_child_waiting_for_its_restart_stays_down_after_stop(watched: Watched) -> None:
    watched.supervisor.add(shell("broken", "exit 3"))
    watched.until(lambda: Happened.DIED in watched.kinds("broken"))
    watched.supervisor.stop()
    time.sleep(1.1)
    watched.supervisor.tick()
    assert watched.supervisor.pids == {}


def test_children_end_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    program = f"""
import os, time
from pathlib import Path
from controlplane.supervisor import Child, Supervisor
supervisor = Supervisor(Path({str(tmp_path)!r}), lambda event: None)
supervisor.add(Child("sleeper", ["sleep", "60"], dict(os.environ)))
print(supervisor.pids["sleeper"], flush=True)
while True:
    supervisor.tick()
    time.sleep(0.1)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        sleeper = int(owner.stdout.readline())
        assert not gone(sleeper)
        owner.kill()
    deadline = time.monotonic() + 10
    while not gone(sleeper):
        assert time.monotonic() < deadline, "the child outlived its killed supervisor"
        time.sleep(0.02)


def test_guarded_processes_are_refused_to_a_helper_thread() -> None:
    failures: list[ProcessError] = []

    def attempt() -> None:
        try:
            guarded(["true"], signal.SIGTERM)
        except ProcessError as error:
            failures.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    assert "main thread" in str(failures[0])


def test_logs_are_bounded(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOG_LIMIT_BYTES", 1_000)
    watched.supervisor.add(shell("chatty", "for i in $(seq 1 300); do echo line $i; done; exec sleep 60"))
    log = watched.supervisor.log_path("chatty")
    watched.until(lambda: log.with_suffix(".log.1").exists() and log.stat().st_size < 1_000)
    assert "line" in log.with_suffix(".log.1").read_text()


def test_two_children_of_one_name_are_refused(watched: Watched) -> None:
    watched.supervisor.add(shell("web", "exec sleep 60"))
    with pytest.raises(ValueError, match="web"):
        watched.supervisor.add(shell("web", "exec sleep 60"))


def test_children_of_one_group_are_stopped_together(tmp_path: Path) -> None:
    events: list[Event] = []
    supervisor = Supervisor(tmp_path, events.append)
    slow = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), sys.exit(0)))\n"
    slow += "print('ready', flush=True)\ntime.sleep(60)"
    for number in range(3):
        supervisor.add(Child(f"slow-{number}", [sys.executable, "-c", slow], dict(os.environ), group="slow"))
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not all(
        "ready" in supervisor.log_path(f"slow-{n}").read_text() for n in range(3)
    ):
        time.sleep(0.02)
    begun = time.monotonic()
    supervisor.stop()
    assert time.monotonic() - begun < 2.5
    assert [e.happened for e in events[3:]] == [Happened.STOPPED] * 3
