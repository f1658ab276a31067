"""Claims that wait, against the real web server: woken at once, by whom it concerns, and ended when they must be."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from admission.services.quotas import set_quota
from admission.services.runs import cancel_runs
from admission.services.sweeps import pass_start_deadlines, release_delayed
from admission.services.tenants import pause_tenant, resume_tenant
from controlplane.core import wakeups
from controlplane.core.audit import SYSTEM
from runners.polling.sharing import Wish, share
from runners.services.fleet import drain_runner, pause_runner, resume_runner, revoke_runner
from tests import ledger
from tests.runners.conftest import RunnerCaller, make_runner
from tests.runners.web import OpenPoll, Web, web_server

SOON = 5.0
HELD = 1.2
"""Longer than two looks of the desk."""

Poll = Callable[..., OpenPoll]


@pytest.fixture
def poll(web: Web, transactional_db: None) -> Iterator[Poll]:
    """`poll(runner, ...)`: a claim that is held; all are cut in the end."""
    opened: list[OpenPoll] = []

    def open_one(runner: RunnerCaller, **options: Any) -> OpenPoll:
        opened.append(OpenPoll(web.port, runner.token, **options))
        return opened[-1]

    yield open_one
    for one in opened:
        one.cut()


@pytest.fixture
def tenant(transactional_db: None) -> Any:
    return ledger.make_tenant()


@pytest.mark.rule("Q7")
def test_a_claim_that_waits_is_answered_when_work_comes(poll: Poll, tenant: Any) -> None:
    waiting = poll(make_runner())
    assert waiting.is_open(HELD)
    made = ledger.submit(tenant)
    began = time.monotonic()
    assert waiting.runs() == made
    assert time.monotonic() - began < SOON


@pytest.mark.rule("Q7")
def test_it_ends_with_nothing_after_its_time(poll: Poll) -> None:
    waiting = poll(make_runner(), wait=0.7)
    status, _, headers = waiting.answer()
    assert (status, headers["Poll-Seconds"], headers["Runner-Mode"]) == (204, "0", "active")
    assert 0.7 <= time.monotonic() - waiting.began < SOON


@pytest.mark.rule("Q7")
def test_one_that_does_not_wait_is_answered_at_once(poll: Poll, tenant: Any) -> None:
    runner = make_runner()
    status, _, headers = poll(runner, wait=0).answer()
    assert (status, headers["Poll-Seconds"]) == (204, "0.5")
    made = ledger.submit(tenant, 3)
    assert poll(runner, wait=0, slots=2).runs() == made[:2]


@pytest.mark.rule("Q7")
def test_as_many_are_woken_as_there_is_work(poll: Poll, tenant: Any) -> None:
    waiting = [poll(make_runner()) for _ in range(8)]
    assert all(one.is_open() for one in waiting)
    made = ledger.submit(tenant, 3)
    ledger.until(lambda: sum(not one.is_open() for one in waiting) == 3)
    answered = [one for one in waiting if not one.is_open(HELD / 8)]
    assert len(answered) == 3
    assert sorted(run for one in answered for run in one.runs()) == made


@pytest.mark.rule("Q7")
def test_one_whose_labels_do_not_fit_swallows_nothing(poll: Poll, tenant: Any) -> None:
    first = poll(make_runner())
    assert first.is_open(0.3)
    able = poll(make_runner(labels={"gpu": "a100"}))
    assert able.is_open(0.3)
    made = ledger.submit(tenant, labels={"gpu": "a100"})
    assert able.runs() == made
    assert first.is_open(HELD)


@pytest.mark.rule("Q2", "Q7")
def test_revocation_ends_it(poll: Poll) -> None:
    runner = make_runner()
    waiting = poll(runner)
    assert waiting.is_open(0.3)
    began = time.monotonic()
    revoke_runner(runner.runner, actor=SYSTEM, reason="test")
    status, body, headers = waiting.answer()
    assert (status, body["code"]) == (401, "bad_token")
    assert "WWW-Authenticate" in headers
    assert time.monotonic() - began < SOON
    assert poll(runner).answer()[0] == 401


@pytest.mark.rule("Q9")
def test_a_cancel_comes_through_it(poll: Poll, tenant: Any) -> None:
    runner = make_runner()
    made = ledger.submit(tenant)
    assert poll(runner, request_id="a").runs() == made
    waiting = poll(runner, request_id="b")
    assert waiting.is_open(0.3)
    cancel_runs(made, actor=SYSTEM)
    status, body, _ = waiting.answer()
    assert (status, body["assignments"]) == (200, [])
    assert body["cancel"] == [{"run": made[0], "epoch": ledger.run(made[0]).epoch}]


@pytest.mark.rule("Q11")
def test_a_drain_ends_it_and_nothing_is_offered_after_its_answer(poll: Poll, tenant: Any) -> None:
    runner = make_runner()
    waiting = poll(runner)
    assert waiting.is_open(0.3)
    drain_runner(runner.runner, actor=SYSTEM, reason="test")
    made = ledger.submit(tenant)
    status, _, headers = waiting.answer()
    assert (status, headers["Runner-Mode"]) == (204, "draining")
    again = poll(runner, request_id="again")
    assert again.answer()[0] == 204
    assert ledger.state(made[0]) == "queued"
    resume_runner(runner.runner, actor=SYSTEM)
    assert poll(runner, request_id="resumed").runs() == made


@pytest.mark.rule("Q11")
def test_a_pause_is_told_and_its_end_too(poll: Poll, tenant: Any) -> None:
    runner = make_runner()
    first = poll(runner)
    assert first.is_open(0.3)
    pause_runner(runner.runner, actor=SYSTEM, reason="test")
    assert first.answer()[2]["Runner-Mode"] == "paused"
    made = ledger.submit(tenant)
    paused = poll(runner, request_id="paused")
    assert paused.is_open(HELD)
    resume_runner(runner.runner, actor=SYSTEM)
    assert paused.answer()[2]["Runner-Mode"] == "active"
    assert poll(runner, request_id="active").runs() == made


@pytest.mark.rule("A15", "Q7")
def test_a_raised_quota_and_the_end_of_a_tenants_pause_wake(poll: Poll) -> None:
    tenant = ledger.make_tenant(0)
    made = ledger.submit(tenant)
    waiting = poll(make_runner())
    assert waiting.is_open(HELD)
    pause_tenant(tenant, actor=SYSTEM, reason="test")
    set_quota(tenant, 1, actor=SYSTEM)
    assert waiting.is_open(HELD)
    resume_tenant(tenant, actor=SYSTEM)
    assert waiting.runs() == made


@pytest.mark.rule("Q4")
def test_a_reply_that_was_lost_is_given_again(poll: Poll, tenant: Any) -> None:
    runner = make_runner()
    lost = poll(runner, request_id="same", slots=5)
    assert lost.is_open(0.3)
    made = ledger.submit(tenant, 3)
    ledger.until(lambda: all(ledger.state(run) == "admitted" for run in made))
    # Committed; and nobody reads the answer.
    lost.cut()
    more = ledger.submit(tenant, 2)
    again = poll(runner, request_id="same", slots=5)
    assert sorted(again.runs()) == made
    assert sorted(poll(runner, request_id="next", slots=5).runs()) == more
    assert {ledger.run(run).attempt for run in made + more} == {1}


@pytest.mark.rule("Q4", "Q7")
def test_a_cut_poll_takes_no_work(poll: Poll, tenant: Any) -> None:
    gone = poll(make_runner())
    assert gone.is_open(0.3)
    gone.cut()
    made = ledger.submit(tenant)
    assert poll(make_runner()).runs() == made


@pytest.mark.rule("Q4", "Q7")
def test_the_same_claim_asked_again_ends_the_one_before(poll: Poll, tenant: Any) -> None:
    runner = make_runner()
    before = poll(runner, request_id="same")
    assert before.is_open(0.3)
    after = poll(runner, request_id="same")
    assert before.answer()[1]["code"] == "poll_superseded"
    assert after.is_open(0.3)
    made = ledger.submit(tenant)
    assert after.runs() == made


@pytest.mark.rule("Q5")
def test_what_nobody_asks_for_again_goes_back_and_burns_nothing(poll: Poll, tenant: Any) -> None:
    lost = poll(make_runner(), slots=3)
    made = ledger.submit(tenant, 3)
    ledger.until(lambda: all(ledger.state(run) == "admitted" for run in made))
    lost.cut()
    taken: list[int] = []

    def all_went_back() -> bool:
        taken.append(pass_start_deadlines().counts["start_deadline"])
        return sum(taken) == 3

    ledger.until(all_went_back)
    rows = [ledger.run(run) for run in made]
    assert {(row.state, row.tries, row.unstarted) for row in rows} == {("queued", 0, 1)}
    assert sorted(poll(make_runner(), slots=3).runs()) == made


@pytest.mark.rule("Q7")
def test_too_many_polls_of_one_runner_are_told_to_slow_down(poll: Poll) -> None:
    runner = make_runner()
    waiting = [poll(runner, request_id=f"r{number}") for number in range(4)]
    assert all(one.is_open(0.2) for one in waiting)
    status, body, headers = poll(runner, request_id="r5").answer()
    assert (status, body["code"]) == (429, "try_later")
    assert int(headers["Retry-After"]) > 0


@pytest.mark.parametrize(
    ("body", "status"), [({"request_id": "no spaces"}, 400), ({"wait_seconds": -1}, 400), ({"colour": "red"}, 400)]
)
@pytest.mark.rule("Q7")
def test_wrong_bodies_are_refused_by_name(poll: Poll, body: dict[str, Any], status: int) -> None:
    found, problem, headers = poll(make_runner(), **body).answer()
    assert (found, headers["Content-Type"]) == (status, "application/problem+json")
    assert problem["errors"][0]["field"] == next(iter(body))
    assert headers["X-Request-ID"] == problem["request_id"]


@pytest.mark.rule("G9", "Q7")
def test_without_listen_and_at_a_stop(database_url: str, tenant: Any) -> None:
    """LISTEN goes nowhere here: work, cancels and revocation are found all the same. A stop ends every poll."""
    dead = "postgresql://nobody@127.0.0.1:9/nothing?connect_timeout=1"
    with web_server(database_url, DATABASE_DIRECT_URL=dead) as web:
        runner, other = make_runner(), make_runner()
        waiting = OpenPoll(web.port, runner.token)
        assert waiting.is_open(0.5)
        made = ledger.submit(tenant)
        began = time.monotonic()
        assert waiting.runs() == made
        assert time.monotonic() - began < SOON
        polls = [OpenPoll(web.port, runner.token, "a"), *(OpenPoll(web.port, make_runner().token) for _ in range(20))]
        revoked = OpenPoll(web.port, other.token)
        assert all(one.is_open(0.05) for one in [*polls, revoked])
        revoke_runner(other.runner, actor=SYSTEM, reason="test")
        assert revoked.answer()[0] == 401
        cancel_runs(made, actor=SYSTEM)
        assert polls.pop(0).answer()[1]["cancel"][0]["run"] == made[0]
        began = time.monotonic()
        web.process.send_signal(signal.SIGTERM)
        answers = [one.answer() for one in polls]
        assert {(status, headers["Retry-After"]) for status, _, headers in answers} == {(503, "1")}
        assert web.process.wait(20) == 0
        assert time.monotonic() - began < SOON


# -- what is announced, and who is woken ------------------------------------------------------------------------------


@pytest.fixture
def heard(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one at every announcement of this process."""
    said: list[int] = []

    def hear() -> bool:
        said.append(1)
        return False

    monkeypatch.setattr(wakeups, "_hearers", [hear])
    return said


@pytest.mark.rule("Q7")
def test_everything_that_makes_work_available_is_announced(heard: list[int]) -> None:
    tenant = ledger.make_tenant(1)
    runner = make_runner()

    def announces(what: Callable[[], Any]) -> bool:
        heard.clear()
        what()
        return bool(heard)

    assert announces(lambda: ledger.submit(tenant, 2))
    first = runner.claimed("a")[0]
    assert announces(lambda: runner.job(first, "result", ending="failed"))
    second = runner.claimed("b")[0]
    assert announces(lambda: cancel_runs([second["run"]], actor=SYSTEM))
    assert announces(lambda: runner.job(second, "result", ending="returned", reason="test"))
    assert announces(lambda: set_quota(tenant, 2, actor=SYSTEM))
    pause_tenant(tenant, actor=SYSTEM, reason="test")
    assert announces(lambda: resume_tenant(tenant, actor=SYSTEM))
    ledger.submit(tenant, not_before="2020-01-01T00:00:00Z")
    assert announces(lambda: drain_runner(runner.runner, actor=SYSTEM, reason="test"))
    assert announces(lambda: resume_runner(runner.runner, actor=SYSTEM))
    assert announces(lambda: revoke_runner(runner.runner, actor=SYSTEM, reason="test"))
    assert release_delayed().counts == {"delayed": 0}


@pytest.mark.rule("Q7")
def test_runs_are_shared_fairly_and_never_twice() -> None:
    profile: Any = "plain"
    able: Any = "able"
    wishes = [Wish("first", profile, 3), Wish("second", able, 1), Wish("third", profile, 3)]
    given = share(wishes, {profile: [1, 2, 3], able: [1, 2, 3, 9]}, spoken_for={3})
    assert given == {"first": [1], "second": [2]}
    assert share(wishes, {able: [9]}, set()) == {"second": [9]}
    assert share(wishes, {profile: [1, 2, 3, 4]}, set()) == {"first": [1, 3], "third": [2, 4]}
