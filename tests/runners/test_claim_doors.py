"""The claim that waits is served beside the WSGI application: the same wrong credentials and bodies there."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest

from controlplane.core.audit import SYSTEM
from runners.services.rotation import rotate_token
from tests import ledger
from tests.api import doors
from tests.api.conftest import make_operator, operator
from tests.api.doors import Victim
from tests.api.test_doors import HUGE, NOBODYS, nothing_changes
from tests.runners.conftest import make_runner
from tests.runners.web import CLAIMS, OpenPoll, Web

__all__ = ["make_operator", "operator"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.rule("Q2", "Q7")]

ASKED = {"request_id": "r", "slots": 5, "wait_seconds": 5}


@pytest.fixture
def victim(transactional_db: None) -> Victim:
    """And one run more, which whoever is let in would be given."""
    made = doors.make_victim()
    assert made.tenant.tenant is not None
    ledger.submit(made.tenant.tenant)
    return made


def call(web: Web, token: str, body: Any, length: int | None = None) -> tuple[int, str, http.client.HTTPMessage]:
    """One claim; `length` is what it claims to send."""
    one = http.client.HTTPConnection("127.0.0.1", web.port, timeout=30)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    headers |= {"Content-Length": str(len(data) if length is None else length)}
    one.request("POST", CLAIMS, data, headers)
    answer = one.getresponse()
    found = (answer.status, answer.read().decode() + str(answer.headers), answer.headers)
    one.close()
    return found


def test_a_dead_or_foreign_credential_is_given_nothing(web: Web, victim: Victim, operator: Any) -> None:
    tokens = {whose: make(victim) for whose, make in NOBODYS.items()}
    tokens |= {"a tenant's": victim.tenant.token, "an operator's": operator.token}
    wrong = []
    with nothing_changes():
        for whose, token in tokens.items():
            for body in (ASKED, b"{cut"):
                status, shown, headers = call(web, token, body)
                # The server itself answers for a head that is longer than it reads.
                right = (status == 401 and "WWW-Authenticate" in headers) or (whose, status) == ("oversized", 431)
                leaked = [secret for secret in [*victim.secrets, *filter(None, tokens.values())] if secret in shown]
                wrong += [] if right and not leaked else [(whose, body, status, leaked)]
    assert not wrong
    assert call(web, make_runner().token, ASKED)[0] == 200


def test_a_body_that_is_none_is_given_nothing(web: Web, victim: Victim) -> None:
    token = make_runner().token
    bodies: list[tuple[Any, int, int | None]] = [
        (b"{}", 413, HUGE), (b"{cut", 400, None), (b"\xff\xfe", 400, None),
        (b"[" * 100_000, 400, None), (b"[]", 400, None), ({**ASKED, "surplus": 1}, 400, None),
        (b'{"request_id": "\\u0000", "slots": 1}', 400, None), ({**ASKED, "slots": 10**30}, 400, None),
    ]  # fmt: skip
    with nothing_changes():
        found = [call(web, token, body, length)[0] for body, _, length in bodies]
    assert found == [status for _, status, _ in bodies]
    assert call(web, token, ASKED)[0] == 200


def test_a_poll_ends_when_its_token_is_replaced(web: Web, transactional_db: None) -> None:
    runner = make_runner()
    waiting = OpenPoll(web.port, runner.token)
    assert waiting.is_open(0.7)
    new = rotate_token(runner.runner, actor=SYSTEM, used=runner.token).token
    assert waiting.is_open(0.7)
    assert call(web, new, {**ASKED, "wait_seconds": 0})[0] == 204  # the first use: the old one is dead
    (run,) = ledger.submit(ledger.make_tenant())
    status, body, headers = waiting.answer()
    assert (status, body["code"]) == (401, "bad_token")
    assert "WWW-Authenticate" in headers
    assert ledger.state(run) == "queued"
