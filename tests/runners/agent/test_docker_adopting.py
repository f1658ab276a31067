"""Containers that another process started, gone on with on the real daemon (rule R10)."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from runners.agent.clock import now
from runners.agent.executors.base import Execution, Exit, NotAdoptable
from runners.agent.executors.docker import DockerExecutor
from runners.agent.executors.slots import Place, PlaceLost, Unrestricted
from tests.runners.agent.conftest import LABELS, assignment, eventually
from tests.runners.agent.proxy import DockerProxy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from runners.agent.assignment import Assignment
    from runners.agent.executors.docker_adapter import DockerAdapter

pytestmark = [pytest.mark.timeout(120), pytest.mark.rule("R10"), pytest.mark.usefixtures("scratch")]

COUNTS = "import time\nfor i in range({}): print(i, flush=True); time.sleep(0.1)"


class Dead:
    """A driver that started something and will not be heard of again."""

    def __init__(self, executor: DockerExecutor, adapter: DockerAdapter) -> None:
        self.labels = {**LABELS, "wharfinger.driver": str(uuid.uuid4())}
        self.output = bytearray()
        self._executor, self._adapter = executor, adapter
        self._left: list[Execution] = []

    def starts(self, command: list[str], **spec: object) -> Assignment:
        given = assignment(command, **spec)  # type: ignore[arg-type]
        self._left.append(self._executor.start(given, self.output.extend, self.labels))
        return given

    def state(self) -> str:
        [listed] = self._adapter.list_containers(self.labels)
        return listed.state

    def end(self) -> None:
        self._executor.sweep(self.labels)
        for execution in self._left:
            execution.remove()


@pytest.fixture
def dead(docker_executor: DockerExecutor, adapter: DockerAdapter) -> Iterator[Dead]:
    made = Dead(docker_executor, adapter)
    yield made
    made.end()


def finish(execution: Execution, seconds: float | None = 60) -> Exit:
    end = execution.wait(None if seconds is None else now() + seconds)
    execution.remove()
    return end


def test_all_output_since_its_creation_the_line_of_the_alias_included(
    dead: Dead, docker_executor: DockerExecutor, adapter: DockerAdapter
) -> None:
    given = dead.starts(["python", "-c", COUNTS.format(20)])
    said = bytes(dead.output)
    assert said.startswith(b"[wharfinger: image ")
    [seen] = docker_executor.look(dead.labels)
    assert (seen.run, seen.attempt, seen.adoptable) == (1, 1, True)
    output = bytearray()
    end = finish(docker_executor.adopt(given, output.extend, dead.labels))
    assert (end.code, end.reason) == (0, "")
    assert output == said + b"".join(b"%d\n" % i for i in range(20)), "the offsets of the stored log count from here"
    assert adapter.list_ids(dead.labels) == {}


def test_output_goes_on_after_the_connection_broke_too(
    dead: Dead, local_image: str, tmp_path: Path, docker_executor: DockerExecutor
) -> None:
    given = dead.starts(["python", "-c", COUNTS.format(30)], image=local_image)
    output = bytearray()
    with DockerProxy(tmp_path / "docker.sock") as proxy:
        execution = DockerExecutor(proxy.adapter).adopt(given, output.extend, dead.labels)
        waiter = threading.Thread(target=execution.wait, args=[None])
        waiter.start()
        eventually(lambda: output)
        proxy.break_all()
        waiter.join(60)
        assert finish(execution).code == 0
    assert output.split() == [b"%d" % i for i in range(30)]


@pytest.mark.parametrize(("code", "reason"), [("raise SystemExit(5)", ""), ("import os; os.kill(1, 9)", "lost")])
def test_what_has_ended_is_collected_but_a_kill_that_nobody_saw_says_nothing_about_the_run(
    code: str, reason: str, dead: Dead, docker_executor: DockerExecutor, local_image: str
) -> None:
    command = ["python", "-c", f"print('said', flush=True)\n{code}"]
    if reason:
        command = ["sh", "-c", "echo said; kill -9 $$; sleep 5"]
    given = dead.starts(command, image=local_image)
    eventually(lambda: dead.state() == "exited", seconds=20)
    output = bytearray()
    end = finish(docker_executor.adopt(given, output.extend, dead.labels))
    assert (end.reason, bytes(output)) == (reason, b"said\n")
    assert end.code == (137 if reason else 5)


@pytest.mark.rule("A28")
def test_what_ended_after_its_time_has_overrun_it_however_late_it_is_looked_at(
    dead: Dead, docker_executor: DockerExecutor, local_image: str
) -> None:
    """And what ended within it has not."""
    given = dead.starts(["sh", "-c", "sleep 1; echo done"], image=local_image)
    eventually(lambda: dead.state() == "exited", seconds=20)
    short = replace(given, spec=given.spec.model_copy(update={"timeout_seconds": 0.5}))
    output = bytearray()
    kept = docker_executor.adopt(short, output.extend, dead.labels).wait(now())
    assert (kept.code, kept.reason, bytes(output)) == (0, "timeout", b"done\n")
    end = finish(docker_executor.adopt(given, lambda data: None, dead.labels), seconds=0)
    assert (end.code, end.reason) == (0, "")


@pytest.mark.rule("P7")
def test_what_was_never_started_is_not_started_but_removed(
    dead: Dead, docker_executor: DockerExecutor, adapter: DockerAdapter, local_image: str
) -> None:
    given = dead.starts(["true"], image=local_image)
    [listed] = adapter.list_containers(dead.labels)
    docker_executor.sweep(dead.labels)
    adapter.create(listed.name, {"Image": local_image, "Cmd": ["true"], "Labels": dict(listed.labels)})
    assert [made.adoptable for made in docker_executor.look(dead.labels)] == [False]
    end = finish(docker_executor.adopt(given, lambda data: None, dead.labels))
    assert (end.code, end.reason) == (None, "lost")
    assert adapter.list_ids(dead.labels) == {}
    with pytest.raises(NotAdoptable, match="no container"):
        docker_executor.adopt(given, lambda data: None, dead.labels)


def test_the_place_comes_first_and_who_does_not_get_it_adopts_nothing(
    dead: Dead, adapter: DockerAdapter, local_image: str
) -> None:
    given = dead.starts(["sleep", "60"], image=local_image)
    asked: list[tuple[str, str]] = []

    class Refusing(Unrestricted):
        def adopt(self, token: str, container: str) -> Place:
            asked.append((token, container))
            raise PlaceLost("it has expired")

    end = finish(DockerExecutor(adapter, slots=Refusing()).adopt(given, lambda data: None, dead.labels))
    assert (end.reason, end.detail) == ("lost", "not adoptable: it has expired")
    [(token, container)] = asked
    assert len(token) == 32
    assert adapter.is_gone(container)


@pytest.mark.rule("R12")
@pytest.mark.parametrize("again", [False, True], ids=["its maker", "an adopter"])
def test_who_lets_go_stops_and_removes_nothing(
    dead: Dead, docker_executor: DockerExecutor, local_image: str, *, again: bool
) -> None:
    given = dead.starts(["python", "-c", COUNTS.format(15)], image=local_image)
    holder = docker_executor.adopt(given, lambda data: None, dead.labels) if again else dead._left[0]
    threading.Timer(0.3, holder.let_go).start()
    end = holder.wait(None)
    holder.remove()
    assert (end.reason, dead.state()) == ("adopted", "running")
    output = bytearray()
    assert finish(docker_executor.adopt(given, output.extend, dead.labels)).code == 0
    assert output.split() == [b"%d" % i for i in range(15)]


def test_a_stop_reaches_what_another_started_and_its_deadline_holds(
    dead: Dead, docker_executor: DockerExecutor, local_image: str
) -> None:
    given = dead.starts(["sleep", "60"], image=local_image, stop_grace_seconds=0.5)
    end = finish(docker_executor.adopt(given, lambda data: None, dead.labels), seconds=0.5)
    assert end.reason == "timeout"


def test_a_sweep_spares_what_is_looked_after(
    dead: Dead, docker_executor: DockerExecutor, adapter: DockerAdapter, local_image: str
) -> None:
    dead.starts(["sleep", "60"], image=local_image)
    [container] = adapter.list_ids(dead.labels)
    assert docker_executor.sweep(dead.labels, {container}) == 0
    assert not adapter.is_gone(container)
    assert docker_executor.sweep(dead.labels) == 1
