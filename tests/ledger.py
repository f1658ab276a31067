"""What tests of the ledger share: making tenants, drivers and runs, reading state, threads with own connections."""

from __future__ import annotations

import importlib
import os
import pkgutil
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Self
from urllib.parse import quote, urlsplit, urlunsplit
from uuid import uuid4

import psycopg
from django.db import connection, connections

from admission import sql as statements_package
from admission.drivers import Driver
from admission.engine import Admitted, Envelope, admit
from admission.models import Attempt, Counter, Permit, Run, Tenant
from admission.services.quotas import set_quota
from admission.services.readings import read_drift
from admission.services.runs import Settlement, settle_runs, start_runs
from admission.services.runs import give_back as services_give_back
from admission.services.submitting import Submission, submit_runs
from admission.services.tenants import create_tenant
from admission.states import DriverKind
from controlplane.core.audit import SYSTEM
from controlplane.core.sql import one
from recovery.models import Replica
from recovery.services.replicas import replica_driver

PATIENCE_SECONDS = 30


def database_url() -> str:
    """The address of the database that Django uses now: under pytest, the worker's test database.

    For a test's own connections, so the server itself where Django goes through a pooler (tests/pooler): a session
    must be one, or nothing could be held open, watched and killed.
    """
    if direct := os.environ.get("DATABASE_DIRECT_URL"):
        return urlunsplit(urlsplit(direct)._replace(path=f"/{connection.settings_dict['NAME']}"))
    return application_url()


def application_url() -> str:
    """The same database as Django reaches it, for processes of the product."""
    s = connection.settings_dict
    password = f":{quote(s['PASSWORD'])}" if s["PASSWORD"] else ""
    return f"postgresql://{s['USER']}{password}@{s['HOST']}:{s['PORT']}/{s['NAME']}"


def connected() -> psycopg.Connection[Any]:
    """A connection of its own, each statement its own transaction; use it as a context."""
    return psycopg.connect(database_url(), autocommit=True)


def make_tenant(quota: int | None = None, *, weight: object = 1, slug: str = "") -> Tenant:
    tenant = create_tenant(slug or f"t-{uuid4().hex[:10]}", actor=SYSTEM, weight=weight)
    if quota is not None:
        set_quota(tenant, quota, actor=SYSTEM)
        tenant.refresh_from_db()
    return tenant


def make_replica(**changes: Any) -> Replica:
    defaults = {
        "name": f"replica-{uuid4().hex[:10]}",
        "incarnation": uuid4(),
        "host": "here",
        "machine": "m",
        "boot_id": "b",
        "pid": 1,
        "pid_start": 1,
        "executor": "docker",
        "slots": 4,
    }
    return Replica.objects.create(**(defaults | changes))


def make_driver(
    kind: str = "replica", *, labels: dict[str, str] | None = None, tenant: Tenant | None = None
) -> Driver:
    """A replica proves itself by its row; a runner here is always let in and has a lease of two minutes."""
    if kind == "replica":
        known = replica_driver(make_replica())
        return Driver(**{f: getattr(known, f) for f in known.__slots__} | {"labels": labels or {}})
    return Driver(
        kind=DriverKind.RUNNER,
        id=time.monotonic_ns(),
        name="a runner",
        lock=lambda: True,
        labels=labels or {},
        backends=("docker",),
        tenant_id=tenant.pk if tenant else None,
        lease_seconds=120,
    )


def submit(tenant: Tenant, count: int = 1, **spec: Any) -> list[int]:
    body = {"command": ["true"], **spec}
    results = submit_runs(tenant, [Submission(body) for _ in range(count)], actor=SYSTEM)
    assert all(r.run is not None for r in results), results
    return [r.run for r in results if r.run is not None]


def admit_all(driver: Driver, slots: int = 100) -> list[Admitted]:
    return admit(driver, Envelope(slots))


def holds(admitted: Iterable[Admitted]) -> list[tuple[int, int]]:
    return [(a.run, a.epoch) for a in admitted]


def start(driver: Driver, admitted: Iterable[Admitted]) -> list[tuple[int, int]]:
    held = holds(admitted)
    assert set(start_runs(driver, held).values()) == {"ok"}
    return held


def succeed(driver: Driver, held: Iterable[tuple[int, int]]) -> None:
    settle_runs(driver, [Settlement(run, epoch, "succeeded", exit_code=0) for run, epoch in held])


def give_back(driver: Driver, held: Iterable[tuple[int, int]], *, drained: bool = False) -> None:
    services_give_back(driver, list(held), "a test", drained=drained)


def multiply_tenants(template: Tenant, count: int) -> None:
    """Copies of a tenant with its queued runs, made in the database: thousands in a second."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            WITH made AS (
                INSERT INTO admission_tenant (slug, name, weight, has_quota, pause_note)
                SELECT %(slug)s || '-' || n, '', weight, has_quota, ''
                FROM admission_tenant, generate_series(1, %(n)s) n WHERE id = %(id)s RETURNING id
            ), counted AS (
                INSERT INTO admission_counter (scope, key, tenant_id, "limit", in_flight, backlog)
                SELECT 'tenant', m.id::text, m.id, c."limit", 0, c.backlog FROM made m, admission_counter c
                WHERE c.tenant_id = %(id)s AND c.scope = 'tenant'
            )
            INSERT INTO admission_run (tenant_id, spec, labels, rank_at, backend, harness, concurrency_key, weight)
            SELECT m.id, r.spec, r.labels, r.rank_at, r.backend, r.harness, r.concurrency_key, r.weight
            FROM made m, admission_run r WHERE r.tenant_id = %(id)s AND r.state = 'queued'
            """,
            {"slug": template.slug, "n": count, "id": template.pk},
        )


def counter(tenant: Tenant) -> Counter:
    return Counter.objects.get(scope="tenant", key=str(tenant.pk))


def in_flight(tenant: Tenant) -> int:
    return counter(tenant).in_flight


def permits(tenant: Tenant) -> int:
    return Permit.objects.filter(tenant=tenant).count()


def run(run_id: int) -> Run:
    return Run.objects.get(pk=run_id)


def state(run_id: int) -> str:
    return str(Run.objects.values_list("state", flat=True).get(pk=run_id))


def attempts(run_id: int) -> list[Attempt]:
    return list(Attempt.objects.filter(run=run_id).order_by("number"))


def assert_conserved() -> None:
    """Counters equal their permits, and permits stand exactly for the open runs of tenants with a quota (S1, S7)."""
    assert read_drift() == []
    stray = Permit.objects.filter(run__isnull=False).exclude(run__state__in=("admitted", "running"))
    assert list(stray) == []
    missing = one(
        """SELECT count(*) AS n FROM admission_run r JOIN admission_tenant t ON t.id = r.tenant_id
           WHERE t.has_quota AND r.state IN ('admitted', 'running') AND NOT EXISTS (
               SELECT FROM admission_permit p
               WHERE p.run_id = r.id AND p.attempt = r.attempt AND p.scope = 'tenant')"""
    )
    assert missing == {"n": 0}


class Concurrent:
    """A function in a thread of its own, with a database connection of its own; its result or its exception."""

    def __init__(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self._call = (work, args, kwargs)
        self._result: Any = None
        self._error: BaseException | None = None
        self.backend = 0
        # Found by name, not by process id: behind a pooler each transaction may have another server process.
        self.name = f"concurrent {uuid4().hex}"
        self._connected = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._connected.wait(PATIENCE_SECONDS)

    def _run(self) -> None:
        work, args, kwargs = self._call
        try:
            connection.ensure_connection()
            self.backend = connection.connection.info.backend_pid
            with connection.cursor() as cursor:
                cursor.execute("SELECT set_config('application_name', %s, false)", (self.name,))
            self._connected.set()
            self._result = work(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - handed to the test by result()
            self._error = error
        finally:
            self._connected.set()
            connections.close_all()

    def running(self) -> bool:
        return self._thread.is_alive()

    def result(self) -> Any:
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "still waiting"
        if self._error is not None:
            raise self._error
        return self._result


def waits_for_lock(observer: psycopg.Connection[Any], backend: int) -> bool:
    row = observer.execute(
        "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s", (backend,)
    ).fetchone()
    return bool(row and row[0])


def _waits(observer: psycopg.Connection[Any], name: str) -> bool:
    found = observer.execute(
        "SELECT FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'", (name,)
    )
    return found.rowcount > 0


def until_waiting(observer: psycopg.Connection[Any], call: Concurrent) -> None:
    """Return once the call waits for a lock in the database: the state itself is reached, no time is guessed."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not _waits(observer, call.name):
        if not call.running():
            raise AssertionError(f"did not wait: {call.result()!r}")
        assert time.monotonic() < deadline, "never waited for a lock"
        time.sleep(0.005)


def until(true: Callable[[], Any], what: str = "", patience: float = PATIENCE_SECONDS) -> Any:
    """Poll until `true()` holds, and return what it said."""
    deadline = time.monotonic() + patience
    while not (answer := true()):
        assert time.monotonic() < deadline, what or "never came true"
        time.sleep(max(0.01, patience / 10_000))
    return answer


def holds_for(polls: int, true: Callable[[], Any], before_each: Callable[[], Any] = lambda: None) -> None:
    """A state that must last: checked over several polls, doing what could break it before each."""
    for _ in range(polls):
        before_each()
        assert true()


class Background:
    """Calls something again and again in a thread of its own while the block runs."""

    def __init__(self, call: Callable[[], object], *, every: float) -> None:
        self._call, self._every, self._stop = call, every, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            self._call()
        connections.close_all()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def all_statements() -> dict[str, str]:
    """Every named statement of the ledger, with the cause of the variants filled in."""
    found: dict[str, str] = {}
    for module in pkgutil.iter_modules(statements_package.__path__):
        loaded = importlib.import_module(f"{statements_package.__name__}.{module.name}")
        for name, value in vars(loaded).items():
            if name.isupper() and isinstance(value, str) and not name.endswith("_TAIL") and "SELECT" in value:
                found[f"{module.name}.{name}"] = value.replace("{cause}", "true")
    return found


def end_other_sessions() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
