"""The Docker executor against the real daemon."""

from __future__ import annotations

import gc
import json
import os
import resource
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runners.agent.executors import docker_execution, docker_sweep
from runners.agent.executors.base import ExecutorError, ImageUnavailable
from runners.agent.executors.docker import DockerExecutor
from runners.agent.executors.docker_adapter import DEFAULT_ENDPOINT, DaemonSilent, DockerAdapter
from runners.agent.executors.docker_execution import DockerExecution
from runners.agent.executors.late_creates import LateCreates
from runners.agent.executors.slots import NO_PLACE, Place, Unrestricted
from tests.runners.agent.conftest import LABELS, assignment, eventually, execute
from tests.runners.agent.proxy import DockerProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

pytestmark = pytest.mark.timeout(120)


def left(adapter: DockerAdapter) -> dict[str, str]:
    return adapter.list_ids(LABELS)


def test_output_and_exit_code(docker_executor: DockerExecutor, adapter: DockerAdapter) -> None:
    code = "import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(3)"
    end, output = execute(docker_executor, assignment(["python", "-c", code]))
    assert (end.code, end.reason) == (3, "")
    assert sorted(output.splitlines()[1:]) == [b"err", b"out"]
    assert left(adapter) == {}


def test_alias_is_said_in_the_log(docker_executor: DockerExecutor, local_image: str) -> None:
    if local_image == "python:3-slim":
        pytest.fail("this machine has the real image; the alias cannot be tested")
    _, output = execute(docker_executor, assignment(["true"]))
    assert b"python:3-slim is not present here; using " + local_image.encode() in output


def test_image_that_cannot_be_had(docker_executor: DockerExecutor, adapter: DockerAdapter) -> None:
    with pytest.raises(ImageUnavailable, match="not present and cannot be pulled"):
        execute(docker_executor, assignment(["true"], image="127.0.0.1:1/nothing:here"))
    assert left(adapter) == {}


@pytest.mark.rule("P17")
def test_limits_are_applied_inside(docker_executor: DockerExecutor, local_image: str) -> None:
    code = """
import json, os, socket
def refused(what):
    try:
        what()
    except OSError as error:
        return error.errno
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
print(json.dumps({
    "uid": os.getuid(), "cwd": os.getcwd(), "caps": status["CapBnd"], "nnp": status["NoNewPrivs"].strip(),
    "root": refused(lambda: open("/x", "w")), "etc": refused(lambda: open("/etc/x", "w")),
    "net": refused(lambda: socket.create_connection(("192.0.2.1", 80), 1)),
    "devices": os.listdir("/sys/class/net"), "file": open("in/a.txt").read(),
    "ro": refused(lambda: open("in/a.txt", "w")),
    "disk": refused(lambda: [open("big", "wb").write(b"x" * (1 << 20)) for _ in range(1)] and None),
    "full": refused(lambda: open("big2", "wb").write(b"x" * (9 << 20))),
}))
"""
    files = {"in/a.txt": {"text": "hello"}}
    given = assignment(["python", "-c", code], image=local_image, files=files, resources={"disk_mib": 8})
    end, output = execute(docker_executor, given)
    seen = json.loads(output)
    assert end.code == 0
    assert (seen["uid"], seen["cwd"], seen["file"]) == (65534, "/work", "hello")
    assert (int(seen["caps"], 16), seen["nnp"], seen["devices"]) == (0, "1", ["lo"])
    assert (seen["root"], seen["etc"], seen["ro"]) == (30, 30, 30), "read-only"
    assert (seen["net"], seen["disk"], seen["full"]) == (101, None, 28)


def test_files_are_gone_afterwards(docker_executor: DockerExecutor, scratch: Path) -> None:
    given = assignment(["cat", "a.txt"], files={"a.txt": {"text": "hello"}})
    end, output = execute(docker_executor, given)
    assert (end.code, output.splitlines()[-1]) == (0, b"hello")
    assert list(scratch.iterdir()) == []


def test_memory_bomb_is_oom(docker_executor: DockerExecutor) -> None:
    bomb = ["python", "-c", "x = bytearray(1 << 30)"]
    end, _ = execute(docker_executor, assignment(bomb, resources={"memory_mib": 64}))
    assert (end.code, end.reason) == (137, "oom")


def test_fork_bomb_is_contained(docker_executor: DockerExecutor, adapter: DockerAdapter) -> None:
    bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
    end, _ = execute(docker_executor, assignment(["python", "-c", bomb], resources={"pids": 32}), seconds=3)
    assert end.reason == "timeout"
    assert left(adapter) == {}


def test_output_flood_is_complete_and_in_order(docker_executor: DockerExecutor, local_image: str) -> None:
    flood = "import os\nfor i in range(800): os.write(1, b'%08d' % i + b'x' * 65527 + b'\\n')"
    end, output = execute(docker_executor, assignment(["python", "-c", flood], image=local_image))
    assert end.code == 0
    assert len(output) == 800 * 65536
    assert [int(line[:8]) for line in output.split(b"\n")[:-1]] == list(range(800))


def test_deadline_stops_an_endless_loop(docker_executor: DockerExecutor) -> None:
    end, _ = execute(docker_executor, assignment(["python", "-c", "while True: pass"]), seconds=2)
    assert end.reason == "timeout"


def test_kill_after_grace(docker_executor: DockerExecutor) -> None:
    stubborn = "import signal\nsignal.signal(15, signal.SIG_IGN)\nwhile True: pass"
    end, _ = execute(docker_executor, assignment(["python", "-c", stubborn], stop_grace_seconds=0.5), seconds=2)
    assert (end.code, end.reason) == (137, "timeout")


def test_cancel_from_another_thread(docker_executor: DockerExecutor, adapter: DockerAdapter) -> None:
    execution = docker_executor.start(assignment(["sleep", "60"]), lambda data: None, LABELS)
    threading.Timer(0.3, execution.stop, ["cancelled"]).start()
    end = execution.wait(None)
    execution.stop("timeout")
    assert end.reason == "cancelled"
    execution.remove()
    execution.remove()
    assert left(adapter) == {}


def test_command_that_is_not_there(docker_executor: DockerExecutor, adapter: DockerAdapter) -> None:
    end, output = execute(docker_executor, assignment(["nonesuch"]))
    assert end.code == 127
    assert b"nonesuch" in output + end.detail.encode()
    assert left(adapter) == {}


@pytest.mark.rule("P17")
def test_limit_that_the_daemon_dropped_is_not_run(
    docker_executor: DockerExecutor, adapter: DockerAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspect = DockerAdapter.inspect

    def dropped(self: DockerAdapter, container: str) -> dict[str, object]:
        answer = inspect(self, container)
        answer["HostConfig"]["PidsLimit"] = None
        return answer

    monkeypatch.setattr(DockerAdapter, "inspect", dropped)
    end, output = execute(docker_executor, assignment(["echo", "ran"]))
    assert end.reason == "executor_error"
    assert "PidsLimit" in end.detail
    assert b"ran" not in output


def test_sweep_removes_created_and_running(docker_executor: DockerExecutor, adapter: DockerAdapter) -> None:
    labels = {**LABELS, "wharfinger.sweep": "1"}
    execution = docker_executor.start(assignment(["sleep", "60"], run=71), lambda data: None, labels)
    adapter.create(
        f"wharfinger-never-started-{LABELS['wharfinger.instance']}",
        {"Image": docker_executor._aliases["python:3-slim"], "Cmd": ["true"], "Labels": labels},
    )
    assert docker_executor.sweep(labels) == 2
    execution.remove()
    assert adapter.list_ids(labels) == {}
    with pytest.raises(ExecutorError, match="without labels"):
        docker_executor.sweep({})


@pytest.mark.rule("P6")
def test_removal_that_is_refused_is_never_taken_for_done(
    local_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_sweep, "REMOVE_SECONDS", 1.0)
    with DockerProxy(tmp_path / "docker.sock") as proxy:
        executor = DockerExecutor(proxy.adapter)
        execution = executor.start(assignment(["true"], run=72, image=local_image), lambda data: None, LABELS)
        execution.wait(None)
        proxy.refuse = b"DELETE "
        with pytest.raises(ExecutorError, match="still there"):
            execution.remove()
        proxy.refuse = b""
        proxy.cut = b"DELETE "
        with pytest.raises(DaemonSilent):
            execution.remove()
        proxy.cut = b""
        execution.remove()


@pytest.mark.rule("P7")
def test_lost_reply_to_create_is_found_by_label(local_image: str, tmp_path: Path, adapter: DockerAdapter) -> None:
    with DockerProxy(tmp_path / "docker.sock") as proxy:
        executor = DockerExecutor(proxy.adapter)
        proxy.lose_reply = b"/containers/create"
        execution = executor.start(assignment(["echo", "hi"], run=73, image=local_image), lambda data: None, LABELS)
        assert len(left(adapter)) == 1
        assert execution.wait(None).code == 0
        execution.remove()
    assert left(adapter) == {}


@pytest.mark.rule("P7")
def test_lost_reply_to_start_is_not_a_second_start(local_image: str, tmp_path: Path, adapter: DockerAdapter) -> None:
    output = bytearray()
    with DockerProxy(tmp_path / "docker.sock") as proxy:
        executor = DockerExecutor(proxy.adapter)
        proxy.lose_reply = b"/start"
        execution = executor.start(assignment(["echo", "hi"], run=74, image=local_image), output.extend, LABELS)
        assert execution.wait(None).code == 0
        execution.remove()
        assert proxy.seen(b"/start") == 1
    assert output == b"hi\n"
    assert left(adapter) == {}


def test_output_goes_on_after_a_broken_connection(local_image: str, tmp_path: Path, adapter: DockerAdapter) -> None:
    output = bytearray()
    code = "import time\nfor i in range(30): print(i, flush=True); time.sleep(0.1)"
    with DockerProxy(tmp_path / "docker.sock") as proxy:
        executor = DockerExecutor(proxy.adapter)
        given = assignment(["python", "-c", code], run=75, image=local_image)
        execution = executor.start(given, output.extend, LABELS)
        waiter = threading.Thread(target=execution.wait, args=[None])
        waiter.start()
        eventually(lambda: output)
        proxy.break_all()
        waiter.join(60)
        assert execution.wait(None).code == 0
        execution.remove()
    assert output.split() == [b"%d" % i for i in range(30)]
    assert left(adapter) == {}


# docker-py does not close the socket that it could not connect.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_daemon_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(DaemonSilent, match="is it running"):
        DockerExecutor(DockerAdapter(f"unix://{tmp_path}/none.sock"))
    gc.collect()


@pytest.mark.rule("P16")
def test_endpoint_is_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONTEXT", "elsewhere")
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    adapter = DockerAdapter()
    monkeypatch.setenv("DOCKER_HOST", "tcp://192.0.2.1:1")
    assert adapter.endpoint == DEFAULT_ENDPOINT
    assert adapter.identity().id
    adapter.close()


def test_short_id_proves_nothing(adapter: DockerAdapter) -> None:
    with pytest.raises(ExecutorError, match="not a full container id"):
        adapter.is_gone("abc")


@pytest.mark.rule("P13")
def test_a_create_that_surfaces_late_is_collected(
    local_image: str, adapter: DockerAdapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_execution, "LOST_CREATE_SECONDS", 0.2)
    with DockerProxy(tmp_path / "proxy.sock") as proxy:
        executor = DockerExecutor(proxy.adapter)
        executor._late = LateCreates(adapter, look_seconds=0.2, watch_seconds=20)
        proxy.late, proxy.late_seconds = b"/containers/create", 2.0
        labels = {**LABELS, "wharfinger.token": "late"}
        end, output = execute(executor, assignment(["echo", "ran"], image=local_image), labels=labels)
        assert (end.reason, output, left(adapter)) == ("lost", b"", {})
        eventually(lambda: left(adapter), 10)
        eventually(lambda: not left(adapter), 10)


class Refusing(Unrestricted):
    """Its places refuse the registration."""

    def __init__(self, refuse: Callable[[str], None]) -> None:
        class Refused(type(NO_PLACE)):  # type: ignore[misc]
            register = staticmethod(refuse)

        self.place: Place = Refused()

    def enter(self, labels: Mapping[str, str]) -> Place | None:
        return self.place


@pytest.mark.rule("P7")
def test_refused_registration_is_not_started(local_image: str, adapter: DockerAdapter) -> None:
    registered: list[str] = []

    def refuse(container: str) -> None:
        registered.append(container)
        assert adapter.inspect(container)["State"]["Status"] == "created"
        raise ExecutorError("the token is fenced")

    executor = DockerExecutor(adapter, slots=Refusing(refuse))
    end, output = execute(executor, assignment(["echo", "ran"], image=local_image))
    assert (end.reason, end.detail, output) == ("executor_error", "the token is fenced", b"")
    assert adapter.is_gone(registered[0])


# docker-py does not close the socket that it could not connect.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.rule("Q12")
def test_a_daemon_that_may_not_be_used_is_no_silent_one(tmp_path: Path) -> None:
    place = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place))
        listening.listen()
        place.chmod(0)
        mine, nobody = os.geteuid(), 65534
        if mine == 0:
            os.seteuid(nobody)  # root may use every socket
        try:
            with pytest.raises(ExecutorError, match="may not use the Docker daemon") as refused:
                DockerAdapter(f"unix://{place}").identity()
        finally:
            os.seteuid(mine)
    assert not refused.value.temporary
    with pytest.raises(ExecutorError) as silent:
        DockerAdapter(f"unix://{tmp_path}/none.sock").identity()
    assert silent.value.temporary
    gc.collect()


def test_a_log_that_breaks_off_ends_with_its_last_whole_frame(
    docker_executor: DockerExecutor, adapter: DockerAdapter, tmp_path: Path
) -> None:
    """The client library ends it as if the container had: whoever reads looks at the container itself."""
    command = ["sh", "-c", "while :; do echo a line; done"]
    execution = docker_executor.start(assignment(command), lambda _: None, LABELS)
    try:
        with DockerProxy(tmp_path / "proxy.sock") as proxy:
            output = proxy.adapter.output_since_creation(next(iter(left(adapter))))
            frames = [next(output)]
            proxy.break_all()
            frames += output
        assert set(frames) == {b"a line\n"}
        assert adapter.inspect(next(iter(left(adapter))))["State"]["Running"]
    finally:
        execution.stop("cancelled")
        execution.wait(None)
        execution.remove()


def test_a_wait_works_with_more_descriptors_than_select_knows() -> None:
    """A driver of some hundred slots has them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    with Path(os.devnull).open("rb") as null:
        opened = [os.dup(null.fileno()) for _ in range(1100)]
    try:
        execution = DockerExecution(DockerAdapter(), assignment(["true"]), lambda _: None, "none", "none", NO_PLACE)
        execution._sleep(0.01)
        execution.discard()
    finally:
        for one in opened:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
