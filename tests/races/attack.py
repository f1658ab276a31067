"""The permit protocol under attack: processes that claim, re-claim, release twice, admit, settle and cancel at once,
while their connections are killed at random points; and an observer that looks at every instant it can catch.

The workers run in processes of their own (a fork server with Django loaded once). Errors of the connection are
expected and answered as a driver answers them: forget what was held, go on. Any other error fails the attack.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import socket
import threading
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext
from typing import Any

import django
import psycopg
from django.apps import apps

if not apps.ready:
    django.setup()

from django.db import InterfaceError, InternalError, OperationalError, connection

from admission.engine import Envelope, admit
from admission.models import Tenant
from admission.services.permits import claim_permit, release_permit
from admission.services.runs import OPERATOR, Settlement, cancel_runs, give_back, settle_runs, start_runs, take_away
from admission.services.submitting import Submission, submit_runs
from admission.sql import permits as sql
from controlplane.core.audit import SYSTEM
from controlplane.core.errors import Conflict
from recovery.models import Replica
from recovery.services.replicas import replica_driver
from tests.ledger import make_replica

PROCESSES = 8
APPLICATION = "wharfinger attack"
LIMITS = (3, 5, 8)
QUEUE = 40
IDS = 12

# How a call ends whose server process was killed. A pooler tells it in words of its own, and twice to some.
POOLED = "DATABASE_DIRECT_URL" in os.environ
LOST = (None, "57P01", "40P01", *(["08P01"] if POOLED else []))
LOST_ERRORS = (OperationalError, InterfaceError, *([InternalError] if POOLED else []))

OBSERVE = """
SELECT (SELECT count(*) FROM admission_counter WHERE "limit" IS NOT NULL AND in_flight > "limit") AS above,
       (SELECT count(*) FROM admission_counter c FULL JOIN (
            SELECT scope, key, sum(weight) AS weight FROM admission_permit GROUP BY scope, key) p USING (scope, key)
        WHERE coalesce(c.in_flight, 0) <> coalesce(p.weight, 0)) AS drifted,
       (SELECT count(*) FROM admission_run r FULL JOIN admission_permit p
            ON p.run_id = r.id AND p.attempt = r.attempt AND r.state IN ('admitted', 'running')
        WHERE r.state IN ('admitted', 'running') AND p.id IS NULL OR p.run_id IS NOT NULL AND r.id IS NULL) AS stray,
       (SELECT count(*) FROM admission_permit) AS held
"""

# Guards removed, to show that the observer sees what they prevent.
VARIANTS = {
    "": "",
    # Counted first, inserted with ON CONFLICT DO NOTHING: one id claimed twice at once leaves a phantom.
    "counter first": """
        WITH counted AS (
            UPDATE admission_counter c SET in_flight = c.in_flight + %(weight)s
            WHERE c.scope = %(scope)s AND c.key = %(key)s AND c.in_flight + %(weight)s <= c."limit"
              AND NOT EXISTS (SELECT FROM admission_permit WHERE holder = %(holder)s AND scope = %(scope)s)
            RETURNING c.id
        ), inserted AS (
            INSERT INTO admission_permit (holder, scope, key, weight, tenant_id, driver_name, acquired_at, renewed_at,
                                          lapse_seconds)
            SELECT %(holder)s, %(scope)s, %(key)s, %(weight)s, %(tenant_id)s, %(driver_name)s, clock_timestamp(),
                   clock_timestamp(), %(lapse_seconds)s FROM counted
            ON CONFLICT (holder, scope) DO NOTHING RETURNING id
        ) SELECT EXISTS (SELECT FROM inserted) AS claimed, true AS tenant_known""",
    # The limit judged on a reading instead of by the predicate of the write: two claims take the last slot.
    "limit read first": sql.CLAIM_PERMIT.replace(
        'i.weight <= coalesce(c."limit", 2147483647) - c.in_flight',
        '(SELECT i.weight <= s."limit" - s.in_flight FROM admission_counter s WHERE s.id = c.id)',
    ),
}


@dataclass(slots=True)
class Report:
    """What an attack did and what was seen."""

    samples: int = 0
    most_held: int = 0
    above: int = 0
    drifted: int = 0
    stray: int = 0
    deeds: Tally[str] = field(default_factory=Tally)
    failures: list[str] = field(default_factory=list)

    @property
    def violations(self) -> int:
        return self.above + self.drifted + self.stray


@dataclass(frozen=True, slots=True)
class Orders:
    """What every worker is told."""

    database: str
    tenants: tuple[int, ...]
    replicas: tuple[int, ...]
    variant: str
    barrier: Any
    ready: Any
    stop: Any
    answers: Any


def attack(seconds: float, *, tenants: list[Tenant], url: str, variant: str = "", seen_enough: bool = False) -> Report:
    """Let the workers loose for so long, observing all the while. `seen_enough`: end at the first violation."""
    context = forkserver(__name__)
    orders = Orders(
        database=url.rpartition("/")[2],
        tenants=tuple(t.pk for t in tenants),
        replicas=tuple(make_replica().pk for _ in range(PROCESSES)),
        variant=variant,
        barrier=context.Barrier(PROCESSES),
        ready=context.Event(),
        stop=context.Event(),
        answers=context.SimpleQueue(),
    )
    workers = [context.Process(target=work, args=(orders, n), daemon=True) for n in range(PROCESSES)]
    for worker in workers:
        worker.start()
    report = Report()
    try:
        # The time begins when all of them do: starting eight processes takes a while on a small machine.
        assert orders.ready.wait(120), "a worker did not come up"
        with _chaos(url, orders.stop, report):
            _observe(url, seconds, report, workers, seen_enough)
    finally:
        orders.stop.set()
    for worker in workers:
        worker.join(60)
        if worker.exitcode != 0:
            report.failures.append(f"worker ended with {worker.exitcode}")
            worker.kill()
    while not orders.answers.empty():
        deeds, failures = orders.answers.get()
        report.deeds.update(deeds)
        report.failures += failures
    _sample(url, report)
    return report


def forkserver(module: str) -> ForkServerContext:
    """Processes forked from one that has this module, hence Django, loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    return context


def _observe(url: str, seconds: float, report: Report, workers: list[Any], seen_enough: bool) -> None:
    with psycopg.connect(url, autocommit=True) as observer:
        until = time.monotonic() + seconds
        while time.monotonic() < until and any(w.is_alive() for w in workers):
            _look(observer, report)
            if seen_enough and report.violations:
                return
            time.sleep(0.005)


def _sample(url: str, report: Report) -> None:
    with psycopg.connect(url, autocommit=True) as observer:
        _look(observer, report)


def _look(observer: psycopg.Connection[Any], report: Report) -> None:
    row = observer.execute(OBSERVE.encode()).fetchone()
    assert row is not None
    report.samples += 1
    report.above += row[0]
    report.drifted += row[1]
    report.stray += row[2]
    report.most_held = max(report.most_held, row[3])


@contextlib.contextmanager
def _chaos(url: str, stop: Any, report: Report) -> Iterator[None]:
    """Terminate a random worker's backend again and again."""

    def kill() -> None:
        dice = random.Random()  # noqa: S311 - nothing secret hangs on it
        with psycopg.connect(url, autocommit=True) as killer:
            while not stop.wait(dice.uniform(0.01, 0.12)):
                killed = killer.execute(
                    """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                       WHERE application_name = %s AND datname = current_database() ORDER BY random() LIMIT 1""",
                    (APPLICATION,),
                )
                report.deeds["backend killed"] += killed.rowcount

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


# -- what runs in the workers


class Worker:
    """One attacking process: its driver, what it believes to hold, and its dice."""

    def __init__(self, orders: Orders, number: int) -> None:
        self.orders, self.number = orders, number
        self.dice = random.Random(number * 7919 + os.getpid())  # noqa: S311 - as above
        self.deeds: Tally[str] = Tally()
        self.failures: list[str] = []
        self.tenants = list(Tenant.objects.filter(pk__in=orders.tenants).order_by("pk"))
        self.driver = replica_driver(Replica.objects.get(pk=orders.replicas[number]))
        self.held: list[tuple[int, int]] = []
        self.known: list[int] = []

    def run(self) -> None:
        verbs = (
            self.claim, self.claim, self.claim, self.release_twice, self.release_twice, self.admit, self.admit,
            self.settle, self.settle, self.cancel, self.return_holds, self.take_from_somebody, self.settle_stale,
        )  # fmt: skip
        turn = 0
        while not self.orders.stop.is_set():
            turn += 1
            if turn % 10 == 1:
                self.claim_the_same_at_once(turn)
            self.attempt(self.dice.choice(verbs))

    def attempt(self, deed: Callable[[], None]) -> None:
        """Do it; one time in ten the client's own socket dies at a random moment of the call."""
        self.deeds[deed.__name__] += 1
        cut = None
        if self.dice.random() < 0.1:
            cut = threading.Timer(self.dice.uniform(0, 0.004), _cut, (connection.connection,))
            cut.start()
        try:
            deed()
        except Conflict:
            self.deeds["conflict"] += 1
        except LOST_ERRORS as error:
            self._lost(error)
        except Exception as error:  # noqa: BLE001 - the attack fails by it, with its text
            self.failures.append(f"{deed.__name__}: {error!r}"[:500])
            connection.close()
        finally:
            if cut is not None:
                cut.join()

    def _lost(self, error: Exception) -> None:
        """A lost connection: nothing is known about the call, so nothing that was held is relied upon."""
        state = getattr(error.__cause__, "sqlstate", None)
        self.deeds["deadlock" if state == "40P01" else "connection lost"] += 1
        if state not in LOST:
            self.failures.append(f"{error!r}"[:500])
        connection.close()
        self.held.clear()

    def claim_the_same_at_once(self, turn: int) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            self.orders.barrier.wait(2)
        tenant = self.tenants[turn // 10 % len(self.tenants)]
        holder = f"ext:same-{turn}"
        self.attempt(lambda: self._claim(holder, tenant))
        if self.dice.random() < 0.5:
            self.attempt(lambda: self._release(holder, tenant))
        self.attempt(lambda: self._claim(holder, tenant))
        self.attempt(lambda: self._release(holder, tenant))
        self.attempt(lambda: self._release(holder, tenant))

    def _shared(self) -> tuple[str, Tenant]:
        number = self.dice.randrange(IDS)
        return f"ext:{number}", self.tenants[number % len(self.tenants)]

    def _claim(self, holder: str, tenant: Tenant, weight: int = 1) -> None:
        self.deeds[claim_permit(holder, tenant_id=tenant.pk, weight=weight).outcome] += 1

    def _release(self, holder: str, tenant: Tenant) -> None:
        release_permit(holder, tenant_id=tenant.pk)

    def claim(self) -> None:
        holder, tenant = self._shared()
        self._claim(holder, tenant, self.dice.choice((1, 1, 1, 2)))

    def release_twice(self) -> None:
        holder, tenant = self._shared()
        self._release(holder, tenant)
        self._release(holder, tenant)

    def admit(self) -> None:
        admitted = admit(self.driver, Envelope(self.dice.randint(1, 4)))
        self.deeds["admitted"] += len(admitted)
        held = [(a.run, a.epoch) for a in admitted]
        self.known += [run for run, _ in held]
        self.held += held
        if self.dice.random() < 0.8:
            start_runs(self.driver, held)
        for tenant in self.tenants:
            if self.dice.random() < 0.2:
                submit_runs(
                    tenant, [Submission({"command": ["x"], "retry": {"backoff_seconds": 0}})] * 3, actor=SYSTEM
                )

    def _some(self) -> list[tuple[int, int]]:
        self.dice.shuffle(self.held)
        some, self.held = self.held[:3], self.held[3:]
        return some

    def settle(self) -> None:
        ending = self.dice.choice(("succeeded", "failed", "cancelled"))
        given = [Settlement(run, epoch, ending) for run, epoch in self._some()]
        settle_runs(self.driver, given)
        settle_runs(self.driver, given)

    def settle_stale(self) -> None:
        settle_runs(self.driver, [Settlement(run, epoch - 1, "succeeded") for run, epoch in self.held])

    def cancel(self) -> None:
        if self.known:
            cancel_runs(self.dice.sample(self.known, min(4, len(self.known))), actor=SYSTEM)

    def return_holds(self) -> None:
        give_back(self.driver, self._some(), "attack", drained=self.dice.random() < 0.5)

    def take_from_somebody(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT id, epoch FROM admission_run WHERE state IN ('admitted', 'running') ORDER BY random() LIMIT 3"
            )
            found = cursor.fetchall()
        take_away(found, OPERATOR)


def _cut(raw: psycopg.Connection[Any] | None) -> None:
    """Shut the socket under the connection: the server may or may not have got the call, and answers nobody."""
    if raw is None or raw.closed:
        return
    with contextlib.suppress(OSError, psycopg.Error):
        end = socket.socket(fileno=os.dup(raw.fileno()))
        end.shutdown(socket.SHUT_RDWR)
        end.close()


def work(orders: Orders, number: int) -> None:
    """The body of one worker process."""
    settings = connection.settings_dict
    settings["NAME"] = orders.database
    settings["OPTIONS"] = {**settings["OPTIONS"], "application_name": APPLICATION}
    if orders.variant:
        sql.CLAIM_PERMIT = VARIANTS[orders.variant]
    worker = Worker(orders, number)
    orders.barrier.wait(120)  # nobody is killed while it still gets ready
    orders.ready.set()
    worker.run()
    orders.answers.put((worker.deeds, worker.failures[:20]))
    connection.close()
