"""A small fleet at work, made through the services: what the admin's tests and its screenshots look at.

`python -m tests.admin` fills the database of `DATABASE_URL` with it, for screenshots away from the demo.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

from admission.drivers import Driver
from admission.engine import Admitted, Envelope, admit
from admission.models import Tenant
from admission.physical.entitlement import Entitlement
from admission.services.permits import claim_permit
from admission.services.physical import PassReport, report_pass
from admission.services.quotas import set_quota
from admission.services.runs import Settlement, cancel_runs, requeue_runs, settle_runs, start_runs
from admission.services.submitting import Submission, submit_runs
from admission.services.tenants import create_tenant, issue_token, pause_tenant
from controlplane.core.audit import Actor
from controlplane.core.clock import database_now
from leadership.election import LeaderElector
from leadership.local import declare_loops
from leadership.models import Fire
from leadership.registry import gated
from leadership.services.intents import declare
from recovery.models import RecoveryAction, RecoveryClaim, RecoveryDebt, Replica
from recovery.services.replicas import drain_replica, replica_driver
from runners.models import Runner
from runners.services.claims import Claimed, claim_runs
from runners.services.enrolment import Machine, enrol, issue_enrolment_token
from runners.services.fleet import find_runner, runner_driver
from runners.services.logs import append_log
from runners.services.secrets import set_secret

ANNA = Actor("anna")
SECRET = "hunter2-must-not-be-seen"


def replica(name: str, **changes: Any) -> Replica:
    values = {
        "name": name,
        "incarnation": uuid4(),
        "host": f"{name}.harbour",
        "machine": name,
        "boot_id": uuid4().hex,
        "pid": 4711,
        "pid_start": 12345,
        "version": "0.1.0",
        "executor": "docker",
        "slots": 8,
    }
    return Replica.objects.create(**(values | changes))


def spec(name: str, **changes: Any) -> dict[str, Any]:
    values = {
        "name": name,
        "command": ["python", "-I", "/work/problem.py", f"--token={SECRET}"],
        "env": {"API_KEY": SECRET, "PYTHONUNBUFFERED": "1"},
        "files": {"problem.py": {"text": "print('hello')\n" * 20}},
        "resources": {"memory_mib": 128, "pids": 32},
        "timeout_seconds": 30,
        "labels": {},
    }
    return values | changes


def submit(tenant: Tenant, count: int, *, first: int = 0, batch: str | None = None, **changes: Any) -> list[int]:
    items = [
        Submission(spec(f"HumanEval/{n}", **changes), f"{tenant.slug}-{batch}-{n}")
        for n in range(first, first + count)
    ]
    answers = submit_runs(tenant, items, actor=Actor(f"token of {tenant.slug}"), batch=batch)
    return [answer.run for answer in answers if answer.run is not None]


def begin(driver: Driver, admitted: Sequence[Admitted | Claimed]) -> list[tuple[int, int]]:
    held = [(a.run, a.epoch) for a in admitted]
    start_runs(driver, held)
    return held


def write_log(driver: Driver, hold: tuple[int, int], lines: int, start: int = 0) -> None:
    text = "".join(
        f"[{n:05d}] HumanEval/{hold[0]}: case {n % 7} of 7 … \x1b[32mok\x1b[0m in {3 + n % 11} ms\n"
        for n in range(start, start + lines)
    ).encode()
    offset = 0
    for piece in (text[i : i + 8192] for i in range(0, len(text), 8192)):
        append_log(driver, hold[0], hold[1], offset, piece)
        offset += len(piece)


ENDINGS = (
    ("succeeded", "", 0),
    ("succeeded", "", 0),
    ("succeeded", "", 0),
    ("failed", "exit_code", 1),
    ("timed_out", "time_limit", 137),
)


def finish(driver: Driver, held: list[tuple[int, int]]) -> None:
    for hold in held:
        ending, reason, code = ENDINGS[hold[0] % len(ENDINGS)]
        detail = "AssertionError: candidate(7) == 13, expected 21" if ending == "failed" else ""
        settle_runs(driver, [Settlement(hold[0], hold[1], ending, reason, detail, code)])


def lead(name: str) -> None:
    """A leader, and the loops' last runs as they would have left them."""
    LeaderElector(f"{name}'s incarnation", name).tick()
    declare_loops()
    now = database_now()
    for loop in gated():
        Fire.objects.create(
            loop=loop.name,
            fire_at=now - timedelta(seconds=3),
            term=1,
            state="done",
            enqueued_at=now - timedelta(seconds=3),
            started_at=now - timedelta(seconds=2.6),
            finished_at=now - timedelta(seconds=2.5),
            worker="north-1:4711",
            result={"moved": 0},
        )
    declare("stuck_run", {"17.cancel_unanswered": {"id": 17, "tenant": "cargo"}})


def build(runs: int = 60) -> dict[str, Any]:
    """Tenants at and over their quota, without one, and paused; drivers in every health; runs in every state."""
    acme = create_tenant("acme", name="Acme Robotics", actor=ANNA)
    borealis = create_tenant("borealis", name="Borealis Research", weight="2.5", actor=ANNA)
    cargo = create_tenant("cargo", name="Cargo Analytics", actor=ANNA)
    delta = create_tenant("delta", name="Delta Night Jobs", actor=ANNA)
    set_quota(acme, 4, actor=ANNA, reason="contract, small plan")
    set_quota(borealis, 6, actor=ANNA, reason="contract")
    set_quota(delta, 2, actor=ANNA, reason="trial")
    issue_token(acme, "nightly evaluation", actor=ANNA)
    north, south = replica("replica-north"), replica("replica-south", executor="process")
    drivers = [replica_driver(north), replica_driver(south)]
    for tenant in (acme, borealis, cargo):
        submit(tenant, runs, batch="human-eval")
    submit(delta, 5, batch="night")
    for _ in range(3):
        for driver in drivers:
            held = begin(driver, admit(driver, Envelope(4)))
            write_log(driver, held[0], 40)
            finish(driver, held)
    runner = enrolled_runner()
    third = runner_driver(runner)
    live = [(driver, begin(driver, admit(driver, Envelope(5)))) for driver in drivers]
    live.append((third, begin(third, claim_runs(third, "claim", Envelope(5)) or [])))
    write_log(live[0][0], live[0][1][0], 1600)
    requeue_runs(live[1][1][:1], actor=ANNA, reason="stuck since the switch was replaced")
    cancel_runs([live[0][1][1][0]], actor=ANNA, reason="superseded by a newer model")
    admit(drivers[1], Envelope(2))
    cancel_runs(submit(cargo, 2, batch="mistake"), actor=ANNA, reason="wrong data set")
    set_quota(borealis, 4, actor=ANNA, reason="half the fleet is in maintenance")
    claim_permit("ext:warehouse-7", tenant_id=cargo.pk, weight=2, holder_name="warehouse")
    pause_tenant(delta, actor=ANNA, reason="invoice overdue")
    report_pass(Entitlement("harbour", 6, 1, hosted=True), PassReport("replica-north", "north", running=2))
    lead("replica-north")
    others(north)
    drain_replica(south, actor=ANNA, reason="kernel update")
    return {"acme": acme, "borealis": borealis, "cargo": cargo, "delta": delta, "live": live, "north": north}


def enrolled_runner() -> Any:
    _, secret = issue_enrolment_token(actor=ANNA, name="lab racks", uses=3, lifetime=timedelta(hours=4))
    _, token = enrol(
        secret, Machine("lab-rack-1", 6, ("docker",), "0.1.0", "rack1.lab"), {"gpu": "a100", "zone": "lab"}
    )
    identity = find_runner(token)
    assert identity is not None
    return identity


def others(north: Replica) -> None:
    """A secret, a runner that is not heard any more, a dead replica under reconciliation, and what recovery wrote."""
    set_secret(Tenant.objects.get(slug="acme"), "REGISTRY_PASSWORD", "a value of some length", actor=ANNA)
    _, secret = issue_enrolment_token(actor=ANNA, name="old rack", uses=1, lifetime=timedelta(hours=1))
    silent, _ = enrol(secret, Machine("lab-rack-0", 2, ("process",), "0.0.9", "rack0.lab"))
    Runner.objects.filter(pk=silent.pk).update(contact_at=north.started_at - timedelta(minutes=42))
    dead = replica("replica-east", beat_at=north.started_at - timedelta(minutes=9), declared_dead_at=north.started_at)
    RecoveryClaim.objects.create(replica=dead, claimant=str(north.incarnation))
    RecoveryAction.objects.create(
        by=north.name, replica_name=dead.name, run_id=1, epoch=1, outcome="requeued", reason="driver_dead: attempt 1"
    )
    RecoveryDebt.objects.create(
        run_id=1,
        epoch=1,
        replica_name=dead.name,
        machine="m",
        dead={"name": dead.name},
        silent_at=north.started_at,
        reason="its containers could not be confirmed gone",
        attempts=6,
        escalated_at=north.started_at,
        next_at=north.started_at + timedelta(hours=1),
    )
    RecoveryAction.objects.create(
        by=north.name, replica_name=dead.name, outcome="deferred", reason="its containers could not be confirmed gone"
    )
