"""No statement of a hot path reads a whole table: with sequential scans made dear, none is left in any plan."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection

from admission.api.reading import COUNT_STATES
from runners import kept_sql, sql

pytestmark = pytest.mark.django_db

HOLD = {"run": 1, "epoch": 1, "driver_kind": "runner", "driver_id": 1}
ADMITTING = {
    **{name: [1] for name in ("counters", "weights", "virtual_times", "start_tags", "runs", "needs_run")},
    **{name: ["1"] for name in ("needs_scope", "needs_key")},
    **dict.fromkeys(("start_deadline_seconds", "lease_seconds", "lapse_seconds"), 60),
    **dict.fromkeys(("driver_kind", "driver_name", "request_id"), "r"),
    "driver_id": 1,
    "incarnation": None,
}
STATEMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "find_runners": (sql.FIND_RUNNERS, {"hashes": [b"x"], "resolution": 5}),
    "note_contacts": (sql.NOTE_CONTACTS, {"runners": [1], "resolution": 5}),
    "read_concerned": (sql.READ_CONCERNED, {"hashes": [b"x"], "modes": ["active"]}),
    "read_answered": (sql.READ_ANSWERED, {"runners": [1], "request_ids": ["r"]}),
    "reserve_claim": (sql.RESERVE_CLAIM, {"runner": 1, "request_id": "r", "token": b"x"}),
    "use_enrolment": (sql.USE_ENROLMENT, {"hash": b"x"}),
    "claim_runs": (sql.CLAIM_RUNS, ADMITTING),
    "forget_claim": (sql.FORGET_CLAIM, {"runner": 1, "request_id": "r"}),
    "read_claim": (sql.READ_CLAIM, {"runner": 1, "request_id": "r"}),
    "append_log": (sql.APPEND_LOG, {**HOLD, "offset": 0, "data": b"x", "cut": False, "late": 600}),
    "read_log_end": (sql.READ_LOG_END, {"run": 1, "attempt": 1}),
    "read_log": (sql.READ_LOG, {"run": 1, "attempt": 1, "offset": 5, "limit": 100}),
    "read_log_state": (sql.READ_LOG_STATE, {"run": 1, "attempt": None, "tenant_id": 1, "days": 30, "late": 600}),
    "delete_old_claims": (sql.DELETE_OLD_CLAIMS, {"age": 600, "limit": 1000}),
    "delete_old_logs": (sql.DELETE_OLD_LOGS, {"age": 600, "after": 0, "limit": 1000}),
    "read_sealed_names": (kept_sql.READ_SEALED_NAMES, {"tenants": [1], "names": ["A"]}),
    "read_held_secrets": (
        kept_sql.READ_HELD_SECRETS,
        {"runs": [1], "epochs": [1], "driver_kind": "runner", "driver_id": 1},
    ),
    "read_hidden": (kept_sql.READ_HIDDEN, {"run": 1}),
    "read_chunks_around": (kept_sql.READ_CHUNKS_AROUND, {"run": 1, "attempt": 1, "first": 5, "stop": 50}),
    "lock_keeper": (kept_sql.LOCK_KEEPER, {**HOLD, "window_seconds": 600}),
    "read_kept": (kept_sql.READ_KEPT, {"run": 1, "attempt": 1}),
    "read_kept_name": (kept_sql.READ_KEPT_NAME, {"run": 1, "attempt": 1, "name": "a"}),
    "doom_unfinished": (kept_sql.DOOM_UNFINISHED, {"age": 3600, "limit": 1000}),
    "doom_old": (kept_sql.DOOM_OLD, {"age": 3600, "after": 0, "limit": 1000}),
    "read_doomed": (kept_sql.READ_DOOMED, {"age": 60, "limit": 100}),
    "count_states": (COUNT_STATES, {"batches": [1, 2], "bound": 1000}),
}


def scanned_whole(plan: dict[str, Any]) -> list[str]:
    """Tables that some node of the plan reads from end to end."""
    own = [plan["Relation Name"]] if plan["Node Type"] == "Seq Scan" else []
    return own + [table for child in plan.get("Plans", []) for table in scanned_whole(child)]


@pytest.mark.parametrize("name", STATEMENTS)
def test_each_statement_has_its_index(name: str) -> None:
    statement, parameters = STATEMENTS[name]
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"EXPLAIN (FORMAT JSON) {statement}", parameters)
        found = cursor.fetchone()[0]
    plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    assert scanned_whole(plan) == []
