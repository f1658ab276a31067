"""The map of guarantees agrees with the tests that it names."""

from __future__ import annotations

import re

import pytest

from tests.guarantees import PAGE, REQUIRED, RULES, marked_tests, page


def test_every_rule_of_this_version_has_a_test() -> None:
    assert sorted(REQUIRED - {rule for rule, _, _ in marked_tests()}) == []


def test_no_test_names_a_rule_that_the_map_does_not_know() -> None:
    assert [(rule, test) for rule, _, test in marked_tests() if rule not in RULES] == []


def test_the_page_is_what_the_markers_say() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.guarantees"


@pytest.mark.rule("G4")
def test_every_lease_says_what_it_guarantees_and_what_it_does_not() -> None:
    section = PAGE.read_text().partition("## What each lease guarantees")[2].partition("## Rules")[0]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("|")][2:]
    assert [re.findall(r"\w+", row[0])[0] for row in rows] == ["permit", "runner", "replica", "recovery", "leader"]
    assert all(cell.strip() for row in rows for cell in row)
