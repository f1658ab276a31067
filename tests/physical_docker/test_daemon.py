"""The Docker daemon stops, comes back, or is another one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import docker
import pytest

from admission.physical.outside import GenerationMark, LedgerMark
from runners.agent.executors.docker_adapter import DockerAdapter
from runners.agent.physical.daemon import LABEL_RECORD, DaemonRecord
from tests.physical_docker.own_daemon import OwnDaemon, own_daemon
from tests.physical_docker.world import FULL, SCALED, Instance, eventually, instance, remains


@pytest.fixture(scope="module")
def daemon(image: str) -> Iterator[OwnDaemon]:
    with own_daemon(image) as made:
        yield made


@pytest.fixture
def apart(tmp_path: Path, image: str, daemon: OwnDaemon) -> Iterator[Instance]:
    with instance(tmp_path, image, daemon.endpoint) as made:
        yield made


def stopped_and_started(apart: Instance, daemon: OwnDaemon, times: dict[str, float], seconds: float) -> None:
    one, other = apart.launcher(1, times=times), apart.launcher(1, times=times)
    one.run(1)
    one.wait_for("made")
    other.run(2)
    other.wait_for("slot_waiting")
    daemon.stop()
    # Nothing starts, nothing is freed that is not confirmed: the ledger counts it still.
    remains(lambda: apart.holders() == 1 and not other.all("slot_admitted"), seconds)
    other.wait_for("slot_pass_failed")
    assert any("no answer from the Docker daemon" in e["error"] for e in other.all("slot_pass_failed"))
    daemon.start()
    apart.adapter.close()
    assert one.wait_for("ended", 60)["reason"] == "lost"
    other.wait_for("made", 60)
    eventually(lambda: apart.containers() and apart.holders() == 1)
    assert apart.running() == 1


@pytest.mark.rule("P6", "P10", "P13")
def test_the_daemon_stops_and_starts(apart: Instance, daemon: OwnDaemon) -> None:
    stopped_and_started(apart, daemon, SCALED, 4.0)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.rule("P6", "P10", "P13")
def test_a_minute_without_the_daemon(apart: Instance, daemon: OwnDaemon) -> None:
    stopped_and_started(apart, daemon, FULL, 60.0)


@pytest.mark.rule("P4", "P11")
def test_another_daemon_is_refused_also_with_a_higher_generation(apart: Instance, daemon: OwnDaemon) -> None:
    apart.launcher(2, 0)
    elsewhere = apart.launcher(6, 1, ready=False, endpoint="unix:///var/run/docker.sock")
    assert "point DOCKER_HOST at" in elsewhere.wait_for("cannot_start")["error"]
    config = apart.snapshot().config
    assert config is not None
    assert (config.limit, config.generation) == (2, 0)
    forget("unix:///var/run/docker.sock", apart.hash)


@pytest.mark.rule("P4", "P11", "P12")
def test_the_first_record_of_a_number_stands() -> None:
    adapter, name = DockerAdapter(), uuid4().hex
    answers: list[LedgerMark] = []
    barrier = threading.Barrier(8)

    def put(number: int) -> None:
        barrier.wait()
        answers.append(DaemonRecord(adapter, name).put_ledger(LedgerMark(1, f"ledger-{number}")))

    threads = [threading.Thread(target=put, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    record = DaemonRecord(adapter, name)
    try:
        assert len(answers) == 8
        assert {record.ledger()} == set(answers)
        assert record.daemon_id() == DaemonRecord(adapter, name).daemon_id()
        assert record.generation() is None
        assert record.put_generation(GenerationMark(9, 2)) == GenerationMark(9, 2)
        assert record.put_generation(GenerationMark(10, 6)) == GenerationMark(10, 6)
        assert record.put_generation(GenerationMark(9, 6)) == GenerationMark(9, 2)
        assert record.generation() == GenerationMark(10, 6)
    finally:
        adapter.close()
        forget("unix:///var/run/docker.sock", name)


def forget(endpoint: str, instance_hash: str) -> None:
    client = docker.APIClient(base_url=endpoint)
    for volume in client.volumes(filters={"label": f"{LABEL_RECORD}={instance_hash}"})["Volumes"] or []:
        client.remove_volume(volume["Name"])
    client.close()
