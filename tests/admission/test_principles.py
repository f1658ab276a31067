"""Principles that hold over the whole ledger."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from admission.engine import Envelope, admit
from admission.models import Counter
from admission.services.readings import read_drift
from controlplane.core.conf import NAMES

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.rule("A1", "G1")
@pytest.mark.django_db
def test_a_machines_envelope_bounds_that_machine_and_a_quota_bounds_them_all(
    make_tenant: Any, make_driver: Any, submit: Any
) -> None:
    submit(make_tenant(3), 10, resources={"memory_mib": 500})
    small, large = make_driver(), make_driver()
    assert len(admit(small, Envelope(8, memory_mib=600))) == 1
    assert len(admit(large, Envelope(8, memory_mib=8000))) == 2
    assert admit(large, Envelope(8, memory_mib=8000)) == []


@pytest.mark.rule("G2")
@pytest.mark.django_db
def test_a_counter_that_left_its_permits_is_found(make_tenant: Any) -> None:
    tenant = make_tenant(3)
    assert read_drift() == []
    Counter.objects.filter(tenant=tenant).update(in_flight=2)
    [drift] = read_drift()
    assert (drift.key, drift.in_flight, drift.permits) == (str(tenant.pk), 2, 0)


@pytest.mark.rule("G5")
def test_no_decision_of_the_ledger_reads_a_local_wall_clock() -> None:
    """All times are the database's. (`monotonic` may only make a holder stop earlier, or a reading be taken anew.)"""
    forbidden = {"now", "utcnow", "today", "time", "localtime", "gmtime"}
    found = [
        f"{path.name}:{node.lineno}"
        for path in [*(ROOT / "admission").glob("*.py"), *(ROOT / "admission" / "services").glob("*.py")]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in forbidden
    ]
    assert found == []


@pytest.mark.rule("G9")
@pytest.mark.parametrize(("direct", "threshold"), [("", "5"), ("postgresql://u@h/d", "None")])
def test_behind_a_transaction_pooler_nothing_is_prepared(direct: str, threshold: str) -> None:
    environment = os.environ | {
        "DATABASE_URL": "postgresql://u@h:1/d",
        "DATABASE_DIRECT_URL": direct,
        "SECRET_KEY": "x",
    }
    script = (
        "from controlplane.settings import DATABASES as d; print(d['default']['OPTIONS'].get('prepare_threshold'))"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == threshold


@pytest.mark.rule("X4")
def test_the_pinned_environment_variables_are_read() -> None:
    pinned = "REPLICA_ID CALLBACK_BASE_URL FENCE INSTANCE_ID FLEET_SECRET WORKER_CONCURRENCY RUN_LIMIT RUN_GENERATION"
    assert {f"CONTROLPLANE_{name}" for name in pinned.split()} <= set(NAMES)
    sources = "".join(p.read_text() for p in (ROOT / "controlplane").rglob("*.py"))
    for name in ("DATABASE_URL", "DATABASE_DIRECT_URL", "REDIS_URL", "SECRET_KEY", "ALLOWED_HOSTS"):
        assert f'"{name}"' in sources
