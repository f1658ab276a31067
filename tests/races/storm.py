"""A small fleet in processes of its own, to be killed at random while its database is crashed under it.

`drive` is one driver: it takes runs, starts them, renews and settles them, and claims permits as another system would.
`keep_house` is what the leader's loops do: reap what lapsed, release what was delayed. Both live through outages.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import django
from django.apps import apps

if not apps.ready:
    django.setup()

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection

from admission.engine import Envelope, admit
from admission.models import Tenant
from admission.services.permits import claim_permit, release_permit
from admission.services.quotas import set_quota
from admission.services.reaping import reap_outside_permits, reap_run_permits
from admission.services.runs import Settlement, read_holds, renew_runs, settle_runs, start_runs
from admission.services.submitting import Submission, submit_runs
from admission.services.sweeps import release_delayed
from admission.services.tenants import create_tenant
from controlplane.core.audit import SYSTEM
from controlplane.core.conf import conf
from recovery.services.replicas import replica_driver
from tests.ledger import make_replica

APPLICATION = "wharfinger storm"
RENEW, LAPSE = 1.0, 3.0
SLOTS = 6


class Flag:
    """Set once, read by all. No `Event`: reading one takes a lock, which a process killed just then keeps for ever."""

    def __init__(self, context: Any) -> None:
        self._value = context.RawValue("b", 0)

    def set(self) -> None:
        self._value.value = 1

    def is_set(self) -> bool:
        return bool(self._value.value)


@dataclass(frozen=True, slots=True)
class Orders:
    """What every process is told."""

    url: str
    stop: Flag
    no_more: Flag
    """Set: nothing is claimed for other systems any more; what is queued is finished."""


def join(orders: Orders) -> None:
    """Point this process at the storm's own server, with short leases."""
    logging.disable(logging.CRITICAL)  # outages are the point here; each would fill a page
    target = urlsplit(orders.url)
    connection.settings_dict.update(
        NAME=target.path.lstrip("/"), HOST=target.hostname, PORT=target.port, USER=target.username, PASSWORD=""
    )
    options = connection.settings_dict["OPTIONS"]
    connection.settings_dict["OPTIONS"] = {**options, "application_name": APPLICATION}
    settings.CONTROLPLANE = {
        **settings.CONTROLPLANE, "permit_renew_seconds": RENEW, "permit_lapse_seconds": LAPSE,
        "reap_interval_seconds": 0.2,
    }  # fmt: skip
    conf.cache_clear()


def surviving(call: Callable[[], None]) -> None:
    """One call; an outage in it is lived through."""
    try:
        call()
    except (DatabaseError, InterfaceError):
        connection.close()
        time.sleep(0.05)


def fill(orders: Orders, tenants: int, runs: int) -> None:
    """Tenants with limits from 1 to 5, and their queues."""
    join(orders)
    for number in range(tenants):
        tenant = create_tenant(f"storm-{number}", actor=SYSTEM)
        set_quota(tenant, 1 + number % 5, actor=SYSTEM)
        submit_runs(tenant, [Submission({"command": ["x"], "retry": {"backoff_seconds": 0}})] * runs, actor=SYSTEM)


class Member:
    """One driver, until it is told to stop or killed."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.dice = random.Random()  # noqa: S311 - spreads load
        self.tenants: list[int] = []
        self.outside: list[tuple[str, int]] = []
        self.driver: Any = None

    def run(self) -> None:
        while not self.orders.stop.is_set():
            surviving(self.turn)
            time.sleep(self.dice.uniform(0.005, 0.03))

    def turn(self) -> None:
        if self.driver is None:
            self.tenants = list(Tenant.objects.values_list("pk", flat=True))
            self.driver = replica_driver(make_replica())
        holds = [(r["id"], r["epoch"]) for r in read_holds(self.driver)]
        start_runs(self.driver, holds)
        renew_runs(self.driver, holds)
        done = [h for h in holds if self.dice.random() < 0.4]
        settle_runs(self.driver, [Settlement(*h, self.dice.choice(("succeeded", "failed"))) for h in done])
        admit(self.driver, Envelope(SLOTS - len(holds) + len(done)))
        self.act_as_another_system()

    def act_as_another_system(self) -> None:
        if self.outside and self.dice.random() < 0.5:
            holder, tenant = self.outside.pop()
            release_permit(holder, tenant_id=tenant)
        elif not self.orders.no_more.is_set():
            holder, tenant = f"ext:{os.getpid()}-{self.dice.random()}", self.dice.choice(self.tenants)
            self.outside.append((holder, tenant))
            claim_permit(holder, tenant_id=tenant, lapse_seconds=LAPSE)


def drive(orders: Orders) -> None:
    """The body of one driver process."""
    join(orders)
    Member(orders).run()


def keep_house(orders: Orders) -> None:
    """The body of the process that sweeps."""
    join(orders)
    while not orders.stop.is_set():
        for sweep in (reap_run_permits, reap_outside_permits, release_delayed):
            surviving(lambda sweep=sweep: (sweep(), None)[1])  # type: ignore[misc]
        time.sleep(0.2)
    with contextlib.suppress(DatabaseError):
        connection.close()
