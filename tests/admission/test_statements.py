"""The plans of the hot statements on a large ledger: each finds its rows by an index."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.db import connection
from psycopg import sql

from admission.sql import (
    admitting,
    callers,
    driving,
    ending,
    metrics,
    permits,
    physical,
    probes,
    quotas,
    readings,
    submitting,
    sweeping,
    why,
)
from tests import ledger

pytestmark = pytest.mark.django_db(transaction=True)

BIG_TABLES = ("admission_run", "admission_permit", "admission_counter", "admission_attempt", "admission_tenant")

# Shapes like those of a busy fleet: most runs have ended, one in twenty is queued, one in twenty is held, half of the
# tenants with a quota are at their cap.
FILL = """
INSERT INTO admission_tenant (slug, name, weight, has_quota, pause_note)
SELECT 'fill-' || n, '', 1, n %% 2 = 0, '' FROM generate_series(1, %(tenants)s) n;

INSERT INTO admission_run (tenant_id, spec, rank_at, state, driver_kind, driver_id, attempt, epoch, finished_at,
                           start_deadline, run_deadline, queue_deadline, lease_until, not_before, delayed,
                           concurrency_key, idempotency_key)
SELECT t.first + n %% %(tenants)s, '{"command": ["true"]}', now() - make_interval(secs => n), s.state,
       CASE WHEN s.state = 'queued' THEN '' ELSE (ARRAY['replica', 'runner'])[1 + n %% 2] END,
       CASE WHEN s.state <> 'queued' THEN n %% 50 END, (s.state <> 'queued')::int, (s.state <> 'queued')::int,
       CASE WHEN s.state = 'succeeded' THEN now() END,
       CASE WHEN s.state = 'admitted' THEN now() + interval '1 minute' END,
       CASE WHEN s.state = 'running' THEN now() + interval '1 hour' END,
       CASE WHEN s.state = 'queued' AND n %% 3 = 0 THEN now() + interval '1 hour' END,
       CASE WHEN s.state IN ('admitted', 'running') AND n %% 2 = 1 THEN now() + interval '2 minutes' END,
       CASE WHEN s.state = 'queued' AND n %% 7 = 0 THEN now() + interval '1 hour' END,
       s.state = 'queued' AND n %% 7 = 0,
       CASE WHEN n %% 11 = 0 THEN 'key' ELSE '' END, 'key-' || n
FROM generate_series(1, %(runs)s) n,
     LATERAL (SELECT CASE WHEN n %% 20 = 0 THEN 'queued' WHEN n %% 1000 = 1 THEN 'admitted'
                          WHEN n %% 20 = 3 THEN 'running' ELSE 'succeeded' END AS state) s,
     (SELECT min(id) AS first FROM admission_tenant) t;

INSERT INTO admission_attempt (run_id, number, tenant_id, epoch, weight, driver_kind, driver_id, admitted_at,
                               released_at)
SELECT id, 1, tenant_id, 1, 1, driver_kind, driver_id, rank_at, finished_at FROM admission_run WHERE state <> 'queued';

INSERT INTO admission_permit (holder, scope, key, weight, tenant_id, run_id, attempt, driver_name, acquired_at,
                              renewed_at, lapse_seconds)
SELECT r.id || '.1', 'tenant', r.tenant_id, 1, r.tenant_id, r.id, 1, '', now(), now(), 1800
FROM admission_run r JOIN admission_tenant t ON t.id = r.tenant_id
WHERE t.has_quota AND r.state IN ('admitted', 'running');

INSERT INTO admission_counter (scope, key, tenant_id, "limit", in_flight, backlog, virtual_time, start_tag)
SELECT 'tenant', t.id, t.id, CASE WHEN t.has_quota THEN p.held + t.id %% 4 / 2 END, p.held, true, t.id %% 100,
       t.id %% 100
FROM admission_tenant t, LATERAL (
    SELECT count(*)::int AS held FROM admission_permit p WHERE p.scope = 'tenant' AND p.key = t.id::text) p;
INSERT INTO admission_counter (scope, key, tenant_id, "limit") SELECT 'key', id || ':key', id, 1 FROM admission_tenant;
"""

# What each parameter would be in a working fleet. Arrays are as long as a batch.
SAMPLE = """
SELECT (SELECT array_agg(id) FROM (SELECT id FROM admission_run WHERE state = 'running' LIMIT 20) a) AS runs,
       (SELECT array_agg(epoch) FROM (SELECT epoch FROM admission_run WHERE state = 'running' LIMIT 20) a) AS epochs,
       (SELECT array_agg(id) FROM (SELECT id FROM admission_run WHERE state = 'queued' LIMIT 20) a) AS queued,
       (SELECT array_agg(tenant_id) FROM (SELECT tenant_id FROM admission_counter WHERE scope = 'tenant' LIMIT 20) a)
           AS tenants,
       (SELECT array_agg(id) FROM (SELECT id FROM admission_counter WHERE scope = 'tenant' LIMIT 20) a) AS counters,
       (SELECT array_agg(key) FROM (SELECT key FROM admission_counter WHERE scope = 'tenant' LIMIT 20) a) AS keys
"""

# Readings of the whole ledger by their nature: audits and sums, on no hot path.
WHOLE = {
    "metrics.READ_FULLEST",
    "metrics.READ_LEDGER",
    "metrics.READ_TENANTS",
    "readings.READ_DRIFT",
    "sweeping.READ_STUCK",
    "sweeping.SAMPLE",
    "why.READ_STANDING",
}
# Conditions that stand in other statements.
PARTS = {"sweeping.PERMIT_LAPSED"}


def fill_ledger(*, tenants: int, runs: int) -> None:
    with connection.cursor() as cursor:
        for statement in FILL.split(";\n"):
            if statement.strip():
                cursor.execute(statement, {"tenants": tenants, "runs": runs})
        for table in BIG_TABLES:
            cursor.execute(f"ANALYZE {table}")


def parameters() -> dict[str, Any]:
    with connection.cursor() as cursor:
        cursor.execute(SAMPLE)
        [names, values] = [c.name for c in cursor.description], cursor.fetchone()
    sample = dict(zip(names, values, strict=True))
    many = len(sample["runs"])
    one_tenant = sample["tenants"][0]
    return sample | {
        "scopes": ["tenant"] * many,
        "limits": [None] * many,
        "keys": sample["keys"],
        "key": str(one_tenant),
        "scope": "tenant",
        "tenant_id": one_tenant,
        "only_tenant": None,
        "page": 208,
        "offset": 0,
        "limit": 500,
        "counts": [5] * len(sample["tenants"]),
        "attempts": [1] * len(sample["runs"]),
        "labels": "{}",
        "profiles": json.dumps([{"n": 0, "labels": {}, "backends": ["docker"], "wanted": 20}]),
        "backends": ["docker"],
        "known_backends": ["docker", "process"],
        "memory_mib": None,
        "cpu": None,
        "taken": [],
        "weights": [1] * many,
        "virtual_times": [1.0] * many,
        "start_tags": [1.0] * many,
        "needs_run": sample["queued"],
        "needs_scope": ["tenant"] * many,
        "needs_key": sample["keys"],
        "driver_kind": "replica",
        "driver_id": 3,
        "incarnation": None,
        "driver_name": "d",
        "start_deadline_seconds": 60,
        "start_seconds": 60,
        "pull_seconds": 900,
        "seconds": 300,
        "lease_seconds": 120,
        "lapse_seconds": 1800,
        "deadline_grace_seconds": 30,
        "details": ["wrong"] * many,
        "reasons": [""] * many,
        "endings": ["succeeded"] * many,
        "exit_codes": [0] * many,
        "reason": "why",
        "reason_code": "why",
        "detail": "",
        "ending": "cancelled",
        "actor": "a",
        "burns": True,
        "counts_unstarted": True,
        "unstarted_limit": 5,
        "holder": "ext:a",
        "holders": ["ext:a", "ext:b"],
        "weight": 1,
        "batch_id": None,
        "created_by": "a",
        "tenants_null": [None] * many,
        "counter": sample["counters"][0],
        "lease": 120,
        "lapse": 1800,
        "cap": 1_000_000,
        "heads": 1_000,
        "rows": 100,
        "stuck": 600,
        "queued": sample["queued"],
        "machine": "m",
        "age": 10,
        "slots": 1,
        "run": sample["queued"][-1],
        "instance": "0" * 64,
        "generation": 0,
        "process": "p",
        "most": 10,
        "by": "a",
        "error": "",
        **dict.fromkeys(("running", "created", "other", "without_token", "without_container"), 0),
        **dict.fromkeys(("took_seconds", "reconcile_seen"), 0),
        "room": 1_000_000,
        "rank_at": "2100-01-01T00:00:00Z",
        "hash": b"h",
        "used": 1,
        "resolution": 60,
    }


def given_to(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """The parameters of this statement, where a name means something else in it."""
    given = dict(given)
    if name in ("admitting.ADMIT_RUNS", "admitting.SET_ASIDE"):
        given["runs"] = given["queued"]
    if name == "submitting.INSERT_RUNS":
        given["runs"] = '[{"position": 0, "spec": {}, "idempotency_key": "new", "weight": 1, "priority": 0}]'
    if name.startswith("submitting.COUNT"):
        given["limit"] = 1_000_001
    if name == "submitting.READ_BY_KEY":
        given["keys"] = [f"key-{n}" for n in range(20)]
    return given


def plan_of(name: str, statement: str, given: dict[str, Any]) -> str:
    """The plan that is made for these parameters."""
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (COSTS OFF) {statement}", given_to(name, given))
        return "\n".join(line for (line,) in cursor.fetchall())


def generic_plan_of(name: str, statement: str, given: dict[str, Any]) -> str:
    """The plan for whatever parameters: what a prepared statement may be executed by from its sixth time on."""
    given = given_to(name, given)
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)))
    numbered = re.sub(r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", statement).replace("%%", "%")
    arguments = sql.SQL(", ").join(sql.Literal(given[name]) for name in names)
    call = sql.SQL("EXPLAIN (COSTS OFF) EXECUTE looked_at") + (
        sql.SQL("({})").format(arguments) if names else sql.SQL("")
    )
    connection.ensure_connection()
    with connection.connection.transaction(), connection.connection.cursor() as cursor:
        cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        cursor.execute(f"PREPARE looked_at AS {numbered}")
        cursor.execute(call)
        plan = "\n".join(line for (line,) in cursor.fetchall())
        cursor.execute("DEALLOCATE looked_at")
    return plan


def assert_served_by_indexes() -> None:
    given = parameters()
    scans = {}
    for name, statement in ledger.all_statements().items():
        if name in WHOLE | PARTS:
            continue
        for look in (plan_of, generic_plan_of):
            plan = look(name, statement, given)
            if found := re.findall(rf"Seq Scan on ({'|'.join(BIG_TABLES)})\b", plan):
                scans[f"{name} ({look.__name__})"] = (sorted(set(found)), plan)
    assert not scans, "\n\n".join(f"{name} scans {tables}:\n{plan}" for name, (tables, plan) in scans.items())


@pytest.mark.rule("A2", "A4", "A12")
def test_no_hot_statement_scans_a_large_ledger(db: None) -> None:
    """The same at a million runs and ten thousand tenants in `make soak`."""
    fill_ledger(tenants=2_000, runs=50_000)
    assert_served_by_indexes()
    lapsed = plan_of("", sweeping.READ_LAPSED_RUN_PERMITS, parameters())
    assert "permit_renewed" in lapsed, "where nothing lapsed the sweep looks at nothing"


@pytest.mark.rule("A2")
def test_the_fair_order_reads_its_index_and_stops_after_a_page(db: None) -> None:
    fill_ledger(tenants=2_000, runs=20_000)
    plan = plan_of("", admitting.READ_FAIR_ORDER, parameters())
    assert "counter_fair_order" in plan
    assert "counter_start_tag" in plan
    assert "Sort" not in plan


def test_every_module_of_statements_is_looked_at() -> None:
    names = {name.partition(".")[0] for name in ledger.all_statements()}
    expected = {
        m.__name__.rpartition(".")[2]
        for m in (
            admitting,
            callers,
            driving,
            ending,
            metrics,
            permits,
            physical,
            probes,
            quotas,
            readings,
            submitting,
            sweeping,
            why,
        )
    }
    assert names == expected
