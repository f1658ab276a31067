"""The example of docs/permits.md, executed as it stands there."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import ledger
from tests.api.conftest import Caller, tenant_caller

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = Path(__file__).resolve().parents[2] / "docs/permits.md"


def example() -> str:
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(code)


@pytest.fixture
def capped(db: None) -> Caller:
    return tenant_caller(quota=1)


@pytest.fixture
def client(capped: Caller, live_server: Any, monkeypatch: Any) -> dict[str, Any]:
    monkeypatch.setenv("WHARFINGER_URL", live_server.url)
    monkeypatch.setenv("WHARFINGER_TOKEN", capped.token)
    names: dict[str, Any] = {}
    exec(compile(example(), str(PAGE), "exec"), names)  # noqa: S102 - our own page
    return names


@pytest.mark.rule("A23")
def test_it_is_about_twenty_lines() -> None:
    code = [line for line in example().splitlines() if line.strip()]
    assert len(code) <= 22


@pytest.mark.rule("A23")
def test_it_holds_a_permit_while_it_works_and_releases_it(capped: Caller, client: dict[str, Any]) -> None:
    seen: list[int] = []

    def work() -> Iterator[None]:
        for _ in range(3):
            seen.append(ledger.in_flight(capped.tenant))
            yield

    assert client["with_permit"]("job:1", work) is True
    assert seen == [1, 1, 1]
    assert ledger.in_flight(capped.tenant) == 0


@pytest.mark.rule("A23", "A11")
def test_it_stops_when_its_permit_is_gone(capped: Caller, client: dict[str, Any]) -> None:
    done: list[int] = []

    def work() -> Iterator[None]:
        for n in range(100):
            if n == 1:
                capped.delete("/permits/job:1")
                time.sleep(0.4)
            done.append(n)
            yield

    assert client["with_permit"]("job:1", work, lease=1) is False
    assert done == [0, 1]


@pytest.mark.rule("A23", "A21")
def test_it_waits_for_a_slot_as_long_as_the_answer_says(capped: Caller, client: dict[str, Any]) -> None:
    capped.post("/permits", {"id": "other"})
    answers: list[bool] = []
    call = threading.Thread(target=lambda: answers.append(client["with_permit"]("job:1", lambda: iter([None]))))
    call.start()
    time.sleep(0.3)
    assert answers == []
    assert capped.delete("/permits/other").json()["released"] is True
    call.join(ledger.PATIENCE_SECONDS)
    assert answers == [True]


@pytest.mark.rule("A23", "A11")
def test_many_are_renewed_at_once_and_the_lost_are_named(capped: Caller, stranger: Caller) -> None:
    capped.post("/permits", {"id": "here", "lapse_seconds": 60})
    stranger.post("/permits", {"id": "theirs"})
    answer = capped.post("/permit-renewals", {"ids": ["here", "gone", "theirs", "gone"]})
    assert answer.json() == {"renewed": {"here": 60.0}, "lost": ["gone", "theirs"]}
    for wrong in ({}, {"ids": []}, {"ids": ["a/b"]}, {"ids": ["x"] * 1001}, {"ids": [1]}):
        assert capped.post("/permit-renewals", wrong).status_code == 400
