"""The process executor with real processes, with the cgroup where this machine gives one and without."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from uuid import uuid4

import pytest

from runners.agent.executors import cgroups, process_sweep, processes
from runners.agent.executors.base import ExecutorError
from runners.agent.executors.process import ProcessExecutor
from runners.agent.executors.processes import identity, is_running
from tests.runners.agent.conftest import LABELS, assignment, eventually, execute

pytestmark = [pytest.mark.timeout(90), pytest.mark.usefixtures("scratch")]

WORKER = uuid4().hex
"""In every mark: another worker may run the other form of a test at the same time, and its processes are not ours."""

FORK_BOMB = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"


@pytest.fixture(params=["cgroup", "plain"])
def executor(request: pytest.FixtureRequest) -> ProcessExecutor:
    # Where no cgroup can be made both are the same: then what `facts` says is tested twice.
    return ProcessExecutor(use_cgroup=request.param == "cgroup")


def python(code: str) -> list[str]:
    return ["python", "-c", code]


def processes_with(mark: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            environment = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if f"MARK={mark}".encode() in environment:
            found.append(int(path.parent.name))
    return found


def nothing_left(base: Path, mark: str) -> bool:
    groups = [g for g in cgroups.ROOT.glob("*/**/wharfinger-run-*") if mark in g.name]
    return not processes_with(mark) and not list(base.iterdir()) and not groups


def test_output_exit_code_and_files(executor: ProcessExecutor, scratch: Path) -> None:
    code = "import sys; print(open('in/a.txt').read(), flush=True); print('err', file=sys.stderr); sys.exit(3)"
    end, output = execute(executor, assignment(python(code), files={"in/a.txt": {"text": "hello"}}))
    assert (end.code, end.reason, output) == (3, "", b"hello\nerr\n")
    assert list(scratch.iterdir()) == []


def test_environment_is_minimal_and_private(executor: ProcessExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://secret")
    code = "import json, os; print(json.dumps([dict(os.environ), os.getcwd(), os.getuid()]))"
    end, output = execute(executor, assignment(python(code), env={"A": "1"}, secrets_given={"TOKEN": "hidden"}))
    environment, directory, uid = json.loads(output)
    assert end.code == 0
    assert (environment["A"], environment["TOKEN"]) == ("1", "hidden")
    assert environment["HOME"] == environment["TMPDIR"] == directory
    assert "DATABASE_URL" not in environment
    assert uid != 0
    assert (executor.facts().user != "same") is executor.facts().root


def test_network_is_as_promised(executor: ProcessExecutor) -> None:
    end, output = execute(
        executor,
        assignment(python("import os; print(os.listdir('/sys/class/net'), len(open('/proc/net/dev').readlines()))")),
    )
    assert end.code == 0
    assert (output.split()[-1] == b"3") is executor.facts().network_isolated, "two lines of heading and lo"


def test_memory_bomb(executor: ProcessExecutor) -> None:
    end, _ = execute(executor, assignment(python("x = bytearray(1 << 30)"), resources={"memory_mib": 64}))
    expected = (137, "oom") if executor.facts().memory_bounds == "tree" else (1, "")
    assert (end.code, end.reason) == expected


def test_fork_bomb_is_contained(executor: ProcessExecutor, scratch: Path) -> None:
    most, mark = 0, f"fork-bomb-{WORKER}"
    given = assignment(python(FORK_BOMB), env={"MARK": mark}, resources={"pids": 30})
    execution = executor.start(given, lambda data: None, LABELS)
    until = time.monotonic() + 2
    while time.monotonic() < until:
        most = max(most, len(processes_with(mark)))
        time.sleep(0.2)
    execution.stop("timeout")
    assert execution.wait(None).reason == "timeout"
    execution.remove()
    assert 1 < most <= 30
    assert nothing_left(scratch, mark)


def test_escape_by_setsid_is_killed(executor: ProcessExecutor, scratch: Path) -> None:
    code = """
import os, sys, time
for depth in range(3):
    if os.fork():
        os._exit(0) if depth else (time.sleep(0.3), sys.exit(0))
    os.setsid()
time.sleep(600)
"""
    end, _ = execute(executor, assignment(python(code), env={"MARK": f"escape-{WORKER}"}))
    assert end.code == 0
    assert nothing_left(scratch, f"escape-{WORKER}")


def test_output_flood_is_complete(executor: ProcessExecutor) -> None:
    total = 0

    def count(data: bytes) -> None:
        nonlocal total
        total += len(data)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    execution = executor.start(
        assignment(python("import os\nfor _ in range(50): os.write(1, b'x' * (1 << 20))")), count, LABELS
    )
    assert execution.wait(None).code == 0
    execution.remove()
    assert total == 50 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 << 10


def test_deadline_and_grace(executor: ProcessExecutor) -> None:
    end, _ = execute(executor, assignment(python("while True: pass")), seconds=1)
    assert (end.code, end.reason) == (128 + signal.SIGTERM, "timeout")
    stubborn = "import signal\nsignal.signal(15, signal.SIG_IGN)\nwhile True: pass"
    end, _ = execute(executor, assignment(python(stubborn), stop_grace_seconds=0.3), seconds=1)
    assert end.reason == "timeout"


def test_cancel_from_another_thread(executor: ProcessExecutor, scratch: Path) -> None:
    execution = executor.start(assignment(["sleep", "60"]), lambda data: None, LABELS)
    threading.Timer(0.3, execution.stop, ["cancelled"]).start()
    end = execution.wait(None)
    execution.stop("timeout")
    assert end.reason == "cancelled"
    execution.remove()
    execution.remove()
    assert list(scratch.iterdir()) == []


def test_command_that_is_not_there(executor: ProcessExecutor, scratch: Path) -> None:
    end, _ = execute(executor, assignment(["nonesuch"]))
    assert (end.code, end.reason) == (127, "executor_error")
    assert "no nonesuch in" in end.detail
    assert list(scratch.iterdir()) == []


def test_secret_with_an_impossible_name(executor: ProcessExecutor, scratch: Path) -> None:
    with pytest.raises(ExecutorError, match="cannot be an environment variable"):
        execute(executor, assignment(["true"], secrets_given={"a b": "x"}))
    assert not scratch.exists() or list(scratch.iterdir()) == []


DRIVER = """
import sys, time
from runners.agent.driver import Driver
from runners.agent.executors.process import ProcessExecutor
from tests.runners.agent.conftest import LABELS, assignment
from tests.runners.agent.stub import StubControl

class Control(StubControl):
    def append_log(self, key, offset, data):
        print("up", flush=True)
        return super().append_log(key, offset, data)

code = '''
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        break
else:
    print("ready", flush=True)
time.sleep(600)
'''
control = Control([assignment(["python", "-c", code], env={"MARK": sys.argv[2]})])
Driver(control, ProcessExecutor(use_cgroup=sys.argv[1] == "cgroup"), slots=1, labels=LABELS).start()
time.sleep(600)
"""


@pytest.mark.parametrize("kind", ["cgroup", "plain"])
@pytest.mark.parametrize("how", ["killed", "stopped first"])
def test_driver_killed_leaves_nothing(kind: str, how: str, scratch: Path) -> None:
    mark = f"orphan-{kind}-{how[:6]}"
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, kind, mark], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    with driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"up\n"
        assert len(processes_with(mark)) >= 4
        if how == "killed":
            driver.kill()
        else:
            # A driver that stands still looks alive; only its end may close the pipe.
            driver.send_signal(signal.SIGSTOP)
            time.sleep(0.3)
            assert len(processes_with(mark)) >= 4
            driver.kill()
        driver.wait()
        eventually(lambda: nothing_left(scratch, mark))


def test_shim_killed_is_lost_and_cleared(executor: ProcessExecutor, scratch: Path) -> None:
    execution = executor.start(
        assignment(["sleep", "600"], env={"MARK": f"shimless-{WORKER}"}), lambda data: None, LABELS
    )
    eventually(lambda: processes_with(f"shimless-{WORKER}"))
    execution._shim.kill()
    assert execution.wait(None).reason == "lost"
    execution.remove()
    assert nothing_left(scratch, f"shimless-{WORKER}")


def test_backstop_of_a_suspended_driver(executor: ProcessExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.agent.executors.process.BACKSTOP_SECONDS", 0.5)
    given = assignment(["sleep", "600"], timeout_seconds=0.5, stop_grace_seconds=0)
    end, _ = execute(executor, given, seconds=None)
    assert (end.code, end.reason) == (None, "timeout")


def test_sweep_clears_what_a_dead_driver_and_a_dead_shim_left(scratch: Path) -> None:
    executor = ProcessExecutor()
    execution = executor.start(
        assignment(["sleep", "600"], env={"MARK": f"swept-{WORKER}"}), lambda data: None, LABELS
    )
    eventually(lambda: processes_with(f"swept-{WORKER}"))
    assert executor.sweep(LABELS) == 0, "its driver lives"
    record = next(scratch.glob("*.json"))
    content = json.loads(record.read_text())
    assert f"swept-{WORKER}" not in record.read_text(), "no environment in the record"
    execution._shim.kill()
    execution._shim.wait()
    record.write_text(json.dumps({**content, "driver": content["driver"] + "0"}))
    assert executor.sweep({**LABELS, "other": "x"}) == 0
    assert executor.sweep(LABELS) == 1
    execution.remove()
    assert nothing_left(scratch, f"swept-{WORKER}")


def test_a_base_that_others_may_write_is_refused(scratch: Path) -> None:
    scratch.mkdir()
    scratch.chmod(0o777)
    with pytest.raises(ExecutorError, match="nobody else may write"):
        execute(ProcessExecutor(), assignment(["true"]))


def test_process_identity() -> None:
    mine = identity(os.getpid())
    assert is_running(mine)
    assert not is_running(mine + "0")
    assert not is_running("")


def test_cgroup_v2_is_used_where_it_is_delegated(tmp_path: Path) -> None:
    """The layout of a delegated v2 tree, as files: this machine may have v1."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    (tmp_path / "cgroup.subtree_control").write_text("memory pids")
    places = cgroups._v2_candidates(tmp_path, {"": "/"})
    assert [p.parents["unified"] for p in places] == [tmp_path]
    (tmp_path / "cgroup.subtree_control").write_text("cpu")
    assert cgroups._v2_candidates(tmp_path, {"": "/"}) == []


ORDINARY = """
import dataclasses, json, os, shutil, sys
from pathlib import Path
from runners.agent.executors import process
from tests.runners.agent.conftest import assignment, execute
from tests.runners.agent.test_process_executor import FORK_BOMB, python
home = sys.argv[1]
if os.geteuid() == 0:
    # The interpreter and the sources may lie where an ordinary user cannot go.
    sys.executable = process._interpreter(other_user=True)
    process._interpreter.cache_clear()
    for name in ("shim_clearing.py", "shim.py"):
        place = shutil.copy(process.SHIM_DIRECTORY / name, home)
    process.SHIM_DIRECTORY = Path(place).parent
    os.setgroups([])
    os.setresgid(61000, 61000, 61000)
    os.setresuid(61000, 61000, 61000)
executor = process.ProcessExecutor()
escape = "import os, time\\nif os.fork() == 0:\\n  os.setsid()\\n  time.sleep(600)\\nprint(os.getuid())"
said = [dataclasses.asdict(executor.facts())]
for code, spec in [
    (escape, {}),
    ("x = bytearray(1 << 30)", {"resources": {"memory_mib": 64}}),
    (FORK_BOMB, {"resources": {"pids": 20}}),
    ("open('big', 'wb').write(bytes(3 << 20))", {"resources": {"disk_mib": 2}}),
]:
    end, output = execute(executor, assignment(python(code), env={"MARK": "ordinary"}, **spec), seconds=2)
    said.append([end.code, end.reason, output.decode()[-30:]])
print(json.dumps(said))
"""


def test_as_an_ordinary_user(scratch: Path) -> None:
    uid = 61_000 if os.geteuid() == 0 else os.geteuid()
    scratch.mkdir(mode=0o711)
    home = scratch.parent / "home"
    home.mkdir(mode=0o755)
    os.chown(scratch, uid, uid)
    done = subprocess.run(
        [sys.executable, "-c", ORDINARY, str(home)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    facts, escape, memory, forks, disk = json.loads(done.stdout)
    assert (facts["root"], facts["user"]) == (False, "same")
    assert escape == [0, "", f"{uid}\n"]
    assert memory[:2] == ([137, "oom"] if facts["memory_bounds"] == "tree" else [1, ""])
    assert forks[1] == "timeout"
    assert disk[0] != 0
    assert nothing_left(scratch, "ordinary")


class Ending:
    """An entry of /proc whose process ends between two looks at it."""

    name = "4194305"

    def __init__(self, place: Path, record: Path) -> None:
        self.path = str(place)
        (place / "cmdline").write_bytes(b"python\0" + os.fsencode(record) + b"\0")

    def stat(self) -> os.stat_result:
        raise FileNotFoundError(self.path)


def test_a_shim_that_ends_while_it_is_looked_for_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "run-1.json"
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", lambda _: [Ending(tmp_path, record)])
        assert process_sweep._shims(record) == []


def test_a_cgroup_that_goes_while_it_is_emptied_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shim that still ends removes it as well."""
    procs = tmp_path / "cgroup.procs"
    procs.write_text("")
    plan = {"procs": str(procs), "pids_max": "", "cgroups": [], "directory": str(tmp_path / "none")}

    def gone(_: object) -> None:
        procs.unlink()
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(processes, "_empty", gone)
    processes.kill_leftovers(plan)

    def refused(_: object) -> None:
        raise PermissionError("not ours")

    procs.write_text("")
    monkeypatch.setattr(processes, "_empty", refused)
    with pytest.raises(ExecutorError, match="not ours"):
        processes.kill_leftovers(plan)
