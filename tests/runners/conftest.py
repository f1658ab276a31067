"""Runners that call the server, in process and over a socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from controlplane.core.audit import SYSTEM
from runners.services.enrolment import Machine, enrol, issue_enrolment_token
from runners.services.fleet import find_runner, runner_driver
from tests import ledger
from tests.api.conftest import Caller, _count_anew, make_operator, nobody, operator, stranger, tenant
from tests.runners.web import Web, web_server

__all__ = ["_count_anew", "make_operator", "nobody", "operator", "stranger", "tenant"]


START_DEADLINE_SECONDS = 3.0


class RunnerCaller(Caller):
    """A runner as it calls; `driver` is the same one as admission sees it."""

    def __init__(self, runner: int, token: str) -> None:
        super().__init__(token)
        self.runner = runner

    @property
    def driver(self) -> Any:
        identity = find_runner(self.token)
        assert identity is not None
        return runner_driver(identity)

    def claim(self, request_id: str = "r1", slots: int = 10, **more: Any) -> Any:
        return self.post("/runner/claims", {"request_id": request_id, "slots": slots, **more})

    def claimed(self, request_id: str = "r1", slots: int = 10) -> list[dict[str, Any]]:
        """The assignments of a claim that must find something."""
        answer = self.claim(request_id, slots)
        assert answer.status_code == 200, answer.content
        return list(answer.json()["assignments"])

    def job(self, assignment: dict[str, Any], verb: str, body: Any = None, **fields: Any) -> Any:
        """Call a path of the one run."""
        path = f"/runner/runs/{assignment['run']}/{verb}"
        headers = {"Job-Token": assignment["job_token"]}
        if verb.startswith("logs"):
            return self.post(path, body, content_type="application/octet-stream", **headers)
        return self.post(path, {"epoch": assignment["epoch"], **fields}, **headers)

    def log(self, assignment: dict[str, Any], offset: int, data: bytes) -> Any:
        return self.job(assignment, f"logs?epoch={assignment['epoch']}&offset={offset}", data)


def named(assignment: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A hold, as the batch forms name it."""
    return {"run": assignment["run"], "epoch": assignment["epoch"], **more}


def make_runner(**options: Any) -> RunnerCaller:
    """Enrol one. Options of the machine, `labels`, and of the token: `tenant`, `trust_labels`."""
    of_token = {name: options.pop(name) for name in ("tenant", "trust_labels") if name in options}
    labels = options.pop("labels", {})
    _, secret = issue_enrolment_token(actor=SYSTEM, lifetime=timedelta(hours=1), **of_token)
    machine = Machine(**{"name": "machine", "slots": 10, **options})
    row, token = enrol(secret, machine, labels)
    return RunnerCaller(row.pk, token)


@pytest.fixture(name="make_runner")
def make_runner_fixture(db: None) -> Callable[..., RunnerCaller]:
    return make_runner


@pytest.fixture
def runner(db: None) -> RunnerCaller:
    return make_runner()


@pytest.fixture(scope="session")
def web(django_db_setup: None, django_db_blocker: Any) -> Iterator[Web]:
    """The real web server on this worker's test database; runs that are not started go back soon."""
    with django_db_blocker.unblock():
        address = ledger.application_url()
    with web_server(address, CONTROLPLANE_START_DEADLINE_SECONDS=str(START_DEADLINE_SECONDS)) as started:
        yield started
