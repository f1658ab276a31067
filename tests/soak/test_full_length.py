"""The guarantees at full scale and length; `make soak`."""

from __future__ import annotations

import os

import pytest

from tests.admission.test_statements import assert_served_by_indexes, fill_ledger
from tests.races.test_attack import withstand
from tests.races.test_run_races import share_a_quota_of_three

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.soak, pytest.mark.timeout(1800)]

SECONDS = float(os.environ.get("WHARFINGER_SOAK_SECONDS", "60"))


@pytest.mark.rule("A4", "A5", "A6", "A8", "A30", "G1", "G6", "G8")
def test_a_minute_of_attack_moves_no_counter_away_from_its_permits(database_url: str) -> None:
    withstand(SECONDS, database_url)


@pytest.mark.rule("A4", "G1")
def test_two_hundred_rounds_of_two_drivers_at_the_same_instant_admit_exactly_three(db: None) -> None:
    share_a_quota_of_three(200)


@pytest.mark.rule("A2", "A4", "A12")
def test_no_hot_statement_scans_a_table_of_a_million_runs_and_ten_thousand_tenants(db: None) -> None:
    fill_ledger(tenants=10_000, runs=1_000_000)
    assert_served_by_indexes()
