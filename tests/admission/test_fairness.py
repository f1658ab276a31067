"""Fair share at scale: a flood delays nobody's first run, shares follow weights, nobody starves.

Queues are made in the database by one statement; ranks are computed as a submit computes them. The full scale runs in
`make soak`.
"""

from __future__ import annotations

import random
from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from django.db import connection

from admission.drivers import Driver
from admission.engine import Envelope, admit
from admission.models import Run, Tenant
from tests import ledger

pytestmark = pytest.mark.django_db(transaction=True)

AGING_SECONDS = 60
"""What one step of priority is worth (rule A18)."""

FILL = """
WITH rows AS (
    INSERT INTO admission_run (tenant_id, spec, priority, rank_at)
    SELECT %(tenant)s, '{"command": ["true"]}', priority,
           now() + make_interval(secs => arrival - %(aging)s * priority)
    FROM unnest(%(arrivals)s::float8[], %(priorities)s::int[]) WITH ORDINALITY AS g(arrival, priority, place)
    ORDER BY place RETURNING id
), woken AS (UPDATE admission_counter SET backlog = true WHERE scope = 'tenant' AND tenant_id = %(tenant)s)
SELECT id FROM rows ORDER BY id
"""


def fill(tenant: Tenant, arrivals: Sequence[float], priorities: Sequence[int] = ()) -> list[int]:
    """Queue runs that arrived so many seconds from now, as if each had been submitted then."""
    given = {
        "tenant": tenant.pk,
        "aging": AGING_SECONDS,
        "arrivals": list(arrivals),
        "priorities": list(priorities) or [0] * len(arrivals),
    }
    with connection.cursor() as cursor:
        cursor.execute(FILL, given)
        found = [row[0] for row in cursor.fetchall()]
        cursor.execute("ANALYZE admission_run")
    return found


def admissions(driver: Driver, count: int, sizes: Sequence[int]) -> Iterator[int]:
    """The tenants of so many admissions, one after another, asked for in batches of changing size."""
    slugs = dict(Tenant.objects.values_list("slug", "id"))
    given = turn = 0
    while given < count:
        batch = admit(driver, Envelope(min(sizes[turn % len(sizes)], count - given)))
        assert batch, "something is queued and nothing was admitted"
        yield from (slugs[a.tenant] for a in batch)
        given, turn = given + len(batch), turn + 1


def one_run_beside_a_flood(runs: int) -> None:
    flood, driver = ledger.make_tenant(), ledger.make_driver()
    fill(flood, range(runs), [9] * runs)
    assert len(admit(driver, Envelope(50))) == 50
    late = ledger.make_tenant()
    [first] = ledger.submit(late)
    assert [a.run for a in admit(driver, Envelope(1))] == [first]
    assert Run.objects.filter(tenant=flood, state="queued").count() == runs - 50


@pytest.mark.rule("A18", "A2")
def test_one_run_is_next_however_many_another_tenant_has_queued() -> None:
    one_run_beside_a_flood(3_000)


@pytest.mark.soak
@pytest.mark.rule("A18", "A2")
def test_one_run_is_next_beside_a_hundred_thousand_of_another_tenant() -> None:
    one_run_beside_a_flood(100_000)


def shares_of_one_to_three(count: int) -> None:
    light, heavy = ledger.make_tenant(weight=1), ledger.make_tenant(weight=3)
    for tenant in (light, heavy):
        fill(tenant, range(count))
    got = Tally(admissions(ledger.make_driver(), count, (1, 7, 3, 20, 1, 50)))
    share = got[heavy.pk] / count
    print(f"share of the heavy tenant over {count} admissions: {share:.4f}")
    assert abs(share - 0.75) <= 0.05 * 0.75
    assert abs(got[light.pk] / count - 0.25) <= 0.05 * 0.25


@pytest.mark.rule("A18")
def test_shares_of_one_to_three_stay_within_five_per_cent() -> None:
    shares_of_one_to_three(400)


@pytest.mark.soak
@pytest.mark.rule("A18")
def test_shares_of_one_to_three_over_two_thousand_admissions_stay_within_five_per_cent() -> None:
    shares_of_one_to_three(2_000)


def nobody_starves(count: int) -> None:
    """Urgent work never ends: of every tenant's arrivals nine in ten are urgent, one is not and must still be served.

    One run of each tenant arrives a second. Whoever arrived with priority p may be overtaken only by what arrived
    within the next 60 (9 - p) s, so each waits for a bounded number of its tenant's admissions. Tenants wait for each
    other by weight only.
    """
    dice = random.Random(7)  # noqa: S311 - spreads priorities
    tenants = [ledger.make_tenant(weight=weight) for weight in (1, 2, 5)]
    most = 9
    bound = AGING_SECONDS * most + 1
    queues: dict[int, list[int]] = {}
    places: dict[int, int] = {}
    for tenant in tenants:
        priorities = [dice.choice((0, *[most] * 9)) for _ in range(count)]
        queues[tenant.pk] = fill(tenant, [float(n) for n in range(count)], priorities)
        places |= {run: place for place, run in enumerate(queues[tenant.pk])}
    served: dict[int, list[int]] = {t.pk: [] for t in tenants}
    turns: list[int] = []
    driver, slugs = ledger.make_driver(), {t.slug: t.pk for t in tenants}
    while len(turns) < count:
        for a in admit(driver, Envelope(100)):
            served[slugs[a.tenant]].append(a.run)
            turns.append(slugs[a.tenant])
    late = max(_overtaken(runs, places) for runs in served.values())
    gap = max(_longest_gap(turns, tenant.pk) for tenant in tenants)
    print(f"{len(turns)} admissions: overtaken by {late} at most (bound {bound}), longest gap of a tenant {gap}")
    assert late <= bound
    assert gap <= 8 + len(tenants)  # the lightest tenant has one share of eight


def _overtaken(served: Sequence[int], places: dict[int, int]) -> int:
    """By how many places any run was served later than it arrived, or is late by now."""
    done = {places[run] for run in served}
    first_unserved = next(n for n in range(len(places)) if n not in done)
    return max(*(turn - places[run] for turn, run in enumerate(served)), len(served) - first_unserved)


def _longest_gap(turns: Sequence[int], tenant: int) -> int:
    at = [n for n, who in enumerate(turns) if who == tenant]
    return max(b - a for a, b in zip([-1, *at], [*at, len(turns)], strict=True))


@pytest.mark.rule("A18")
def test_nobody_starves_among_mixed_priorities() -> None:
    nobody_starves(2_000)


@pytest.mark.soak
@pytest.mark.rule("A18")
def test_nobody_starves_over_ten_thousand_admissions_of_mixed_priorities() -> None:
    nobody_starves(10_000)


@pytest.mark.rule("A18")
def test_a_submitted_run_ranks_by_its_arrival_and_a_minute_a_step_of_priority(make_tenant: Any, submit: Any) -> None:
    """What `fill` above assumes."""
    [run] = submit(make_tenant(), priority=3)
    row = ledger.run(run)
    assert (row.created_at - row.rank_at).total_seconds() == 3 * AGING_SECONDS
