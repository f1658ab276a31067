"""Local envelopes by stored samples: own, the machine's, the neighbours', and unknown."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings
from django.utils import timezone

from admission.drivers import Driver
from admission.engine import Envelope, admit
from admission.models import Probe
from admission.services.probes import Sample, read_use, record_probe
from admission.services.why import explain
from recovery.replica.envelope import MachineEnvelope
from recovery.replica.machine import MachineReader
from recovery.services.replicas import leave, replica_driver
from runners.agent.assignment import Capacity
from runners.database_control import DatabaseControl
from tests import ledger

pytestmark = pytest.mark.django_db(transaction=True)

BOUNDED = {"replica_memory_mib": 1000, "replica_cpu": 4.0, "replica_slots": 4}
FREE = Capacity(4, 1000, 4.0)
SMALL = {"resources": {"memory_mib": 100, "cpu": 0.5}}


class Reader(MachineReader):
    """A machine that has in use what the test says."""

    def __init__(self, memory: int = 0, cpu: float | None = 0.0) -> None:
        self.used: tuple[int, float | None] = (memory, cpu)

    def memory_mib(self) -> int:
        return self.used[0]

    def cpu(self) -> float | None:
        return self.used[1]


def an_envelope(machine: str = "m", *, memory: int = 0, cpu: float | None = 0.0) -> tuple[MachineEnvelope, Driver]:
    driver = replica_driver(ledger.make_replica(machine=machine))
    envelope = MachineEnvelope(driver, machine, lambda: 0, Reader(memory, cpu))
    envelope.sample()
    return envelope, driver


def hold(driver: Driver, tenant: Any, count: int, *, start: bool = True) -> list[tuple[int, int]]:
    ledger.submit(tenant, count, **SMALL)
    admitted = admit(driver, Envelope(count))
    return ledger.start(driver, admitted) if start else ledger.holds(admitted)


@pytest.mark.rule("A19")
def test_without_an_envelope_nothing_is_bounded(db: None) -> None:
    envelope, _ = an_envelope(memory=10**6)
    Probe.objects.all().delete()
    assert envelope.narrow(FREE) == FREE


@pytest.mark.rule("A19")
@override_settings(CONTROLPLANE=BOUNDED)
def test_used_is_the_sample_or_what_is_in_flight_whichever_is_more(make_tenant: Any) -> None:
    envelope, driver = an_envelope(memory=700, cpu=1.0)
    assert envelope.narrow(FREE) == Capacity(4, 300, 3.0)
    hold(driver, make_tenant(), 3)
    record_probe(driver, Sample("m", 0, 50, 0.25))
    assert envelope.narrow(FREE) == Capacity(1, 700, 2.5), "three runs of 100 MiB and half a processor"
    record_probe(driver, Sample("m", 3, 600, 3.0))
    assert envelope.narrow(FREE) == Capacity(1, 400, 1.0)
    assert envelope.narrow(Capacity(1, 200, 0.5)) == Capacity(1, 200, 0.5), "never more than the driver itself has"


@pytest.mark.rule("A19")
@override_settings(CONTROLPLANE=BOUNDED)
def test_own_work_that_no_sample_can_show_yet_comes_on_top_of_the_sample(make_tenant: Any) -> None:
    envelope, driver = an_envelope(memory=500)
    hold(driver, make_tenant(), 1, start=False)
    hold(driver, make_tenant(), 1)
    assert envelope.narrow(FREE).memory_mib == 300
    record_probe(driver, Sample("m", 2, 600, 0.0))
    assert envelope.narrow(FREE).memory_mib == 300, "the started one is in the new sample, the admitted one is not"


@pytest.mark.rule("A19")
@override_settings(CONTROLPLANE=BOUNDED)
def test_two_replicas_on_one_machine_count_what_each_was_given_and_has_not_created(make_tenant: Any) -> None:
    one_envelope, one_driver = an_envelope()
    other_envelope, other_driver = an_envelope()
    _, elsewhere = an_envelope("another machine")
    tenant = make_tenant()
    hold(elsewhere, tenant, 2, start=False)
    hold(one_driver, tenant, 4, start=False)
    assert other_envelope.narrow(FREE) == Capacity(4, 600, 2.0)
    hold(other_driver, tenant, 1, start=False)
    assert one_envelope.narrow(FREE).slots == 0
    assert read_use(one_driver, "m").memory_mib == 500  # type: ignore[union-attr]


@pytest.mark.rule("A19")
@override_settings(CONTROLPLANE=BOUNDED)
def test_two_replicas_that_admit_at_once_do_not_both_take_what_their_machine_has_left(
    make_tenant: Any, connect: Any
) -> None:
    tenant, gate, observer = make_tenant(100), connect(), connect(autocommit=True)
    ledger.submit(tenant, 30, resources={"memory_mib": 100, "cpu": 1.0})
    gate.execute("SELECT FROM admission_counter WHERE tenant_id = %s FOR UPDATE", (tenant.pk,))
    calls = []
    for _ in range(2):
        # Both have read that the whole machine is free, and the first has picked its runs.
        envelope, driver = an_envelope()
        control = DatabaseControl(envelope.bounding(), envelope.narrow)
        calls.append(ledger.Concurrent(control.claim, driver.name, FREE))
        ledger.until_waiting(observer, calls[-1])
    gate.commit()
    given = [len(call.result()) for call in calls]
    assert sum(given) == 4, "each has four slots, and the machine four processors"
    ledger.assert_conserved()


@pytest.mark.rule("A19")
@override_settings(CONTROLPLANE=BOUNDED)
def test_started_work_of_the_neighbour_is_counted_once_by_the_sample(make_tenant: Any) -> None:
    _, neighbour = an_envelope()
    envelope, driver = an_envelope()
    hold(neighbour, make_tenant(), 2)
    assert envelope.narrow(FREE).memory_mib == 800, "not sampled yet"
    record_probe(driver, Sample("m", 0, 180, 0.0))
    assert envelope.narrow(FREE).memory_mib == 820


@pytest.mark.rule("A19", "G7")
@override_settings(CONTROLPLANE=BOUNDED)
def test_an_old_sample_is_unknown_and_unknown_is_no_headroom_there_while_others_go_on(make_tenant: Any) -> None:
    envelope, _ = an_envelope()
    other, _ = an_envelope("another machine")
    Probe.objects.filter(machine="m").update(sampled_at=timezone.now() - timedelta(seconds=11))
    assert envelope.narrow(FREE) == Capacity(0)
    assert other.narrow(FREE) == FREE
    envelope.sample()
    assert envelope.narrow(FREE) == FREE
    unread, _ = an_envelope("third", cpu=None)
    assert unread.narrow(FREE) == Capacity(0)


@pytest.mark.rule("A19", "A29")
@override_settings(CONTROLPLANE=BOUNDED)
def test_it_is_applied_where_the_replica_asks(make_tenant: Any) -> None:
    tenant = make_tenant()
    envelope, driver = an_envelope(memory=750)
    control = DatabaseControl(driver, envelope.narrow)
    runs = ledger.submit(tenant, 4, **SMALL)
    assert len(control.claim("1", FREE)) == 2
    assert control.claim("2", Capacity(2, 800, 3.0)) == []
    assert [ledger.state(run) for run in runs].count("queued") == 2
    ledger.assert_conserved()


@pytest.mark.rule("A19", "A24")
@override_settings(CONTROLPLANE=BOUNDED)
def test_why_says_that_no_machine_has_the_memory_left(make_tenant: Any) -> None:
    driver = replica_driver(ledger.make_replica(machine="m", memory_mib=1000))
    record_probe(driver, Sample("m", 0, 950, None))
    [run] = ledger.submit(make_tenant(), **SMALL)
    [blocker] = explain(run).blockers
    assert blocker.code == "drivers_full"
    assert "memory" in blocker.sentence
    record_probe(driver, Sample("m", 0, 100, None))
    assert list(explain(run).blockers) == []


@pytest.mark.rule("A19")
def test_a_replica_that_leaves_leaves_no_entry(db: None) -> None:
    _, driver = an_envelope()
    assert Probe.objects.count() == 1
    assert leave(driver.id) is True
    assert Probe.objects.count() == 0


@pytest.mark.rule("A19")
def test_what_a_killed_replica_left_is_dropped_by_its_neighbour_once_it_holds_nothing(make_tenant: Any) -> None:
    _, dead = an_envelope()
    envelope, _ = an_envelope()
    held = hold(dead, make_tenant(), 1)
    Probe.objects.filter(driver_id=dead.id).update(sampled_at=timezone.now() - timedelta(hours=1))
    envelope.sample()
    assert Probe.objects.count() == 2
    ledger.succeed(dead, held)
    envelope.sample()
    assert Probe.objects.count() == 1


@pytest.mark.rule("A19")
def test_the_kernels_own_numbers() -> None:
    reader = MachineReader()
    assert reader.memory_mib() > 0
    deadline = timezone.now() + timedelta(seconds=5)
    while (busy := reader.cpu()) is None:
        assert timezone.now() < deadline
    assert busy >= 0


@pytest.mark.rule("A19")
def test_busy_processors_are_counted_between_two_readings(tmp_path: Path) -> None:
    def write(busy: int, idle: int) -> None:
        lines = [f"cpu  {busy} 0 0 {idle} 0 0 0 0 999 999", "cpu0 1", "cpu1 1", "intr 5"]
        (tmp_path / "stat").write_text("\n".join(lines))

    (tmp_path / "meminfo").write_text("MemTotal: 4096000 kB\nMemFree: 1 kB\nMemAvailable: 1024000 kB\n")
    write(100, 100)
    reader = MachineReader(tmp_path)
    assert reader.memory_mib() == 3000
    assert reader.cpu() is None
    write(175, 125)
    assert reader.cpu() == pytest.approx(1.5)
    assert reader.cpu() is None
