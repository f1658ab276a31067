"""Real processes that hold permits: one is killed, another stopped in the middle of its admission."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction

from admission.models import Attempt, Permit, Run
from admission.services.reaping import reap_outside_permits, reap_run_permits
from controlplane.core.sql import execute, one
from controlplane.embedded.postgres import ROLE_SETTINGS
from runners.services.claims import Claim
from tests import ledger
from tests.runners.conftest import make_runner

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).resolve().parents[2]
IDLE_SECONDS = 2
"""How long a transaction may stand still, in these tests."""

Start = Callable[..., "subprocess.Popen[str]"]


@dataclass(frozen=True, slots=True)
class Windows:
    """Of permits, in seconds."""

    renew: float
    lapse: float
    sweep: float

    def settings(self) -> dict[str, float]:
        return {
            "permit_renew_seconds": self.renew,
            "permit_lapse_seconds": self.lapse,
            "reap_interval_seconds": self.sweep,
        }


SCALED = Windows(1.2, 3.6, 0.2)
DELIVERED = Windows(600, 1800, 30)


@pytest.fixture
def holder(database_url: str, settings: Any) -> Iterator[Start]:
    """`holder("keep", replica, tenant, "ext:a")`: the process, after its first word."""
    started: list[subprocess.Popen[str]] = []

    def start(*argv: object, first: str) -> subprocess.Popen[str]:
        chosen = {f"CONTROLPLANE_{name.upper()}": str(value) for name, value in settings.CONTROLPLANE.items()}
        environment = {
            **os.environ,
            **chosen,
            "DATABASE_URL": ledger.application_url(),
            "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        }
        command = [sys.executable, "-m", "tests.races.holder", *map(str, argv)]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().split()[:1] == [first]
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def a_killed_holders_permits_come_back(holder: Start, settings: Any, windows: Windows, *, calm: float) -> None:
    """Within the lapse of its last renewal. The living holder beside it loses nothing, nor for `calm` seconds on."""
    settings.CONTROLPLANE = {**settings.CONTROLPLANE, **windows.settings()}
    tenant = ledger.make_tenant(6)
    ledger.submit(tenant, 4)
    first, second = ledger.make_replica(), ledger.make_replica()
    killed = holder("keep", first.pk, tenant.pk, "ext:killed", first="holds")
    living = holder("keep", second.pk, tenant.pk, "ext:living", first="holds")
    assert ledger.in_flight(tenant) == 6
    with ledger.Background(lambda: (reap_run_permits(), reap_outside_permits()), every=windows.sweep):
        time.sleep(calm)  # nothing is taken from two that renew
        assert ledger.in_flight(tenant) == 6
        killed.kill()
        killed.wait()
        began = time.monotonic()
        renewed = Permit.objects.filter(driver_name=first.name).latest("renewed_at").renewed_at
        patience = windows.lapse + windows.renew + ledger.PATIENCE_SECONDS
        ledger.until(lambda: ledger.in_flight(tenant) == 3, "the killed holder's permits never came back", patience)
        back = time.monotonic() - began
        time.sleep(calm)  # and the living one goes on
    print(f"back {back:.2f} s after the kill; lapse {windows.lapse} s, sweep each {windows.sweep} s")
    taken = Attempt.objects.filter(reason="permit_lapse").values_list("released_at", flat=True)
    assert min((at - renewed).total_seconds() for at in taken) >= windows.lapse, "reaped before it lapsed"
    # A pass that came late takes the pause for an outage and holds still for one renewal, once.
    assert back < windows.lapse + windows.renew + windows.sweep + 2
    assert living.poll() is None, "the living holder lost something"
    assert set(Run.objects.filter(driver_id=second.pk).values_list("state", flat=True)) == {"running"}
    assert set(Run.objects.filter(reason="permit_lapse").values_list("state", flat=True)) == {"queued"}
    assert list(Permit.objects.filter(run__isnull=True).values_list("holder", flat=True)) == ["ext:living"]
    ledger.assert_conserved()


@pytest.mark.rule("A11", "A12", "R8")
def test_a_killed_holders_permits_are_back_within_the_lapse_and_no_living_holders_is_taken(
    holder: Start, settings: Any
) -> None:
    a_killed_holders_permits_come_back(holder, settings, SCALED, calm=SCALED.lapse)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.rule("A11", "A12", "R8")
def test_with_the_windows_of_the_contract_a_killed_holders_permits_are_back_after_thirty_minutes(
    holder: Start, settings: Any
) -> None:
    a_killed_holders_permits_come_back(holder, settings, DELIVERED, calm=20)


@pytest.fixture
def set_time_outs(database_url: str) -> Iterator[Callable[..., None]]:
    """On the role, as a deployment sets them, so that they reach sessions behind a pooler too."""
    name = connection.ops.quote_name(connection.settings_dict["NAME"])
    role = f"ALTER ROLE CURRENT_USER IN DATABASE {name} "

    def set_all(**time_outs: str) -> None:
        with connection.cursor() as cursor:
            for setting, value in time_outs.items():
                cursor.execute(f"{role} SET {setting} = '{value}'")
        # A session keeps what it began with: also the one that a pooler has just served us with, and serves others by.
        with ledger.connected() as direct:
            direct.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        connection.close()

    yield set_all
    with connection.cursor() as cursor:
        cursor.execute(role + "RESET ALL")


def stopped_inside_an_admission_holds_others_up(holder: Start, seconds: float) -> None:
    """For the time-out at most; then its run and its permit are as free as before."""
    hot = ledger.make_tenant(3)
    runs = ledger.submit(hot, 3)
    other_tenant = ledger.make_tenant()
    replica, driver = ledger.make_replica(), ledger.make_driver()
    stopped = holder("pause", replica.pk, first="inside")
    began = time.monotonic()
    [unhindered] = ledger.submit(other_tenant)
    assert len(runs) == 3
    admitted: set[int] = set()

    def others_served() -> bool:
        """Everything but the run that the stopped one had picked. A lock's time-out may end the first try early."""
        admitted.update(a.run for a in ledger.admit_all(driver))
        return unhindered in admitted and len(admitted & set(runs)) >= 2

    ledger.until(others_served, "the fleet stands still")
    held_up = time.monotonic() - began
    print(f"held up for {held_up:.2f} s; time-out {seconds} s")
    assert held_up < seconds + 1.5

    def all_served() -> bool:
        admitted.update(a.run for a in ledger.admit_all(driver))
        return admitted == {unhindered, *runs}

    ledger.until(all_served, "the stopped driver's run was not given to another")
    stopped.send_signal(signal.SIGCONT)
    assert stopped.stdout is not None
    assert stopped.stdout.readline().split()[0] == "undone"
    assert ledger.in_flight(hot) == 3
    assert set(Run.objects.filter(tenant=hot).values_list("driver_id", flat=True)) == {driver.id}
    ledger.assert_conserved()


@pytest.mark.rule("A12", "A13", "G8")
def test_a_driver_stopped_inside_an_admission_holds_the_fleet_up_for_the_time_out_at_most(
    holder: Start, set_time_outs: Callable[..., None]
) -> None:
    set_time_outs(idle_in_transaction_session_timeout=f"{IDLE_SECONDS}s")
    stopped_inside_an_admission_holds_others_up(holder, IDLE_SECONDS)


@pytest.mark.rule("A12", "A13")
@pytest.mark.parametrize(("own", "bounds"), [("0", "10s"), ("2s", "2s"), ("1min", "1min")])
@pytest.mark.parametrize("kind", ["replica", "runner"])
def test_an_admission_brings_a_time_out_where_the_role_has_none(kind: str, own: str, bounds: str) -> None:
    driver = Claim(make_runner().driver, "r").driver if kind == "runner" else ledger.make_driver()
    with transaction.atomic():
        execute("SELECT set_config('idle_in_transaction_session_timeout', %(own)s, true)", {"own": own})
        assert driver.lock()
        assert one("SELECT current_setting('idle_in_transaction_session_timeout') AS now") == {"now": bounds}


@pytest.mark.soak
@pytest.mark.parametrize("time_outs", [ROLE_SETTINGS, dict.fromkeys(ROLE_SETTINGS, "0")], ids=["as delivered", "none"])
@pytest.mark.rule("A12", "A13", "G8")
def test_a_stopped_driver_holds_the_fleet_up_for_ten_seconds_at_most_also_where_the_role_has_no_time_outs(
    holder: Start, set_time_outs: Callable[..., None], time_outs: dict[str, str]
) -> None:
    set_time_outs(**time_outs)
    stopped_inside_an_admission_holds_others_up(holder, 10)
