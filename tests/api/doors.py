"""Every operation of the API with a call of it that would do something, a victim to do it to, and what must not leak.

The table is held against the OpenAPI document: an operation without a call here fails the tests.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from django.db import connection
from django.test import Client

from admission.models import ApiToken, Batch
from runners.models import EnrolmentToken
from tests.api.conftest import Caller, tenant_caller
from tests.runners.conftest import RunnerCaller, make_runner

MARK = "classified"
"""Stands in everything of the victim's that is his to see."""

REASON = {"reason": "x"}
# The body of each operation that has one, valid for the victim. `$name` is a fact of his.
BODIES: dict[str, Any] = {
    "POST /batches": {"name": "b", "runs": [{"spec": {"command": ["true"]}}]},
    "POST /enrolment-tokens": REASON,
    "POST /intents/{intent}/retry": REASON,
    "POST /leases/{role}/step-down": REASON,
    "PUT /limits": {"scope": "key", "key": "k", "tenant": "$slug", "limit": 7, "reason": "x"},
    "POST /loops/{loop}/run": REASON,
    "POST /permit-renewals": {"ids": ["outside"]},
    "POST /permits": {"id": "another"},
    "POST /permits/{permit}/force-release": {"reason": "x", "tenant": "$slug"},
    "POST /physical/reconcile": REASON,
    "POST /recovery/debts/{debt}/retry": REASON,
    "POST /runner/claims": {"request_id": "theirs", "slots": 5},
    "POST /runner/drain": {},
    "POST /runner/heartbeats": {"runs": ["$hold"], "pulling": ["$hold"]},
    "POST /runner/results": {"results": [{"run": "$run", "epoch": "$epoch", "ending": "failed", "log_end": 99}]},
    "POST /runner/runs/{run}/artifacts": b"forged",
    "POST /runner/runs/{run}/heartbeat": {"epoch": "$epoch"},
    "POST /runner/runs/{run}/logs": b"forged",
    "POST /runner/runs/{run}/result": {"epoch": "$epoch", "ending": "succeeded", "exit_code": 0},
    "POST /runner/runs/{run}/start": {"epoch": "$epoch"},
    "POST /runner/starts": {"runs": ["$hold"]},
    "POST /runner/token": {},
    "POST /runner/wish": {"verb": "pause"},
    "POST /runners/{runner}/drain": REASON,
    "POST /runners/{runner}/pause": REASON,
    "POST /runners/{runner}/resume": REASON,
    "POST /runners/{runner}/revoke": REASON,
    "POST /runners/{runner}/rotate": REASON,
    "POST /runners/enrol": {"token": "$enrolment", "name": "m"},
    "POST /runs": {"command": ["true"]},
    "POST /replicas/{replica}/drain": REASON,
    "POST /replicas/{replica}/resume": REASON,
    "POST /runs/{run}/cancel": {},
    "POST /runs/{run}/requeue": REASON,
    "POST /tenants": {"slug": "new"},
    "PATCH /tenants/{slug}": {"weight": 9},
    "POST /tenants/{slug}/pause": {"reason": "x", "resume_at": None},
    "PUT /tenants/{slug}/quota": {"limit": 99, "reason": "x"},
    "POST /tenants/{slug}/resume": REASON,
    "POST /tokens": {"name": "mine", "reason": "x"},
    "PUT /secrets/{name}": {"value": "not so secret", "reason": "x"},
}
# Bytes instead of JSON, with the query that they need.
RAW = {
    "POST /runner/runs/{run}/artifacts": "&name=forged.txt",
    "POST /runner/runs/{run}/logs": "&offset=0",
}
WITHOUT_BODY = (
    "GET /batches", "GET /batches/{batch}", "GET /enrolment-tokens", "DELETE /enrolment-tokens/{token}", "GET /leases",
    "GET /limits", "GET /permits", "DELETE /permits/{permit}", "POST /permits/{permit}/renew", "GET /replicas",
    "GET /runner", "GET /runner/holds", "DELETE /runner/drain", "GET /runners", "GET /runs", "GET /runs/{run}",
    "GET /runs/{run}/logs", "GET /runs/{run}/why", "GET /tenants", "GET /tenants/{slug}", "DELETE /tenants/{slug}",
    "GET /tenants/{slug}/quota", "DELETE /tenants/{slug}/quota", "GET /tokens", "DELETE /tokens/{token}",
    "GET /runs/{run}/artifacts", "GET /runs/{run}/artifacts/{name}", "GET /secrets", "DELETE /secrets/{name}",
    "GET /intents", "GET /physical", "GET /recovery", "GET /recovery/debts", "GET /recovery/log",
)  # fmt: skip
OPERATIONS = sorted([*BODIES, *WITHOUT_BODY])
ENROL = "POST /runners/enrol"
RUNNERS = [op for op in OPERATIONS if op.partition(" ")[2].startswith("/runner/") or op == "GET /runner"]
TENANTS = [op for op in OPERATIONS if op not in RUNNERS and op != ENROL]


@dataclass
class Victim:
    """A tenant with a run on a runner, and everything else that a call could name."""

    tenant: Caller
    runner: RunnerCaller
    given: dict[str, Any]
    facts: dict[str, Any]
    secrets: list[str] = field(default_factory=list)
    client: Client = field(default_factory=Client)

    def path(self, operation: str) -> str:
        template = operation.partition(" ")[2]
        path = template.format_map({**self.facts, "token": self._token(template)})
        return f"{path}?epoch={self.facts['epoch']}{RAW[operation]}" if operation in RAW else path

    def _token(self, template: str) -> int:
        rows: Any = EnrolmentToken.objects if template.startswith("/enrol") else ApiToken.objects
        return int(rows.latest("pk").pk if template.startswith("/enrol") else self.facts["api_token"])

    def body(self, operation: str) -> Any:
        return self._filled(BODIES.get(operation))

    def _filled(self, value: Any) -> Any:
        if isinstance(value, str) and value.startswith("$"):
            return self.facts[value[1:]]
        if isinstance(value, dict):
            return {name: self._filled(item) for name, item in value.items()}
        return [self._filled(item) for item in value] if isinstance(value, list) else value

    def call(self, operation: str, token: str, *, body: Any = None, length: int | None = None) -> Any:
        """The operation as whoever has this token, over the victim's things; `length` is what it claims to send."""
        method = operation.partition(" ")[0]
        headers = {"authorization": f"Bearer {token}"} if token else {}
        if operation in RUNNERS and "{run}" in operation:
            headers["Job-Token"] = self.given["job_token"]
        body = self.body(operation) if body is None else body
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        if operation in RAW:
            headers["Artifact-Sha256"] = hashlib.sha256(data).hexdigest()
        kind = "application/octet-stream" if operation in RAW else "application/json"
        claimed = {} if length is None else {"CONTENT_LENGTH": str(length)}
        path = f"/api/v1{self.path(operation)}"
        return self.client.generic(method, path, data, content_type=kind, headers=headers, **claimed)


def make_victim() -> Victim:
    tenant = tenant_caller(quota=5)
    assert tenant.tenant is not None
    runner = make_runner(name="machine")
    marked = {"command": ["echo", MARK], "name": MARK, "env": {"KEY": MARK}, "concurrency_key": MARK}
    batch = tenant.post("/batches", {"name": MARK, "runs": [{"spec": marked}, {"spec": marked}]})
    assert batch.status_code == 200
    given = runner.claimed()[0]
    runner.job(given, "start")
    runner.log(given, 0, MARK.encode())
    assert tenant.post("/permits", {"id": "outside"}).status_code == 201
    assert tenant.put(f"/secrets/{MARK.upper()}", {"value": f"{MARK} value"}).status_code == 201
    enrolment = _enrolment_token()
    facts = {
        "run": given["run"],
        "epoch": given["epoch"],
        "hold": {"run": given["run"], "epoch": given["epoch"]},
        "slug": tenant.tenant.slug,
        "batch": Batch.objects.get().pk,
        "permit": "outside",
        "runner": runner.runner,
        "api_token": ApiToken.objects.get(tenant=tenant.tenant).pk,
        "enrolment": enrolment,
        "role": "loops",
        "loop": "deadlines",
        "debt": 1,
        "intent": 1,
        "replica": 1,
        "name": MARK.upper(),
    }
    return Victim(tenant, runner, given, facts, [tenant.token, runner.token, given["job_token"], enrolment, MARK])


def _enrolment_token() -> str:
    from controlplane.core.audit import SYSTEM  # noqa: PLC0415 - beside its only use
    from runners.services.enrolment import issue_enrolment_token  # noqa: PLC0415

    return issue_enrolment_token(actor=SYSTEM)[1]


NOT_COMPARED = ("contact_at", "last_used_at")


def everything() -> dict[str, str]:
    """A digest of each table of ours, without the times at which somebody was heard."""
    less = " ".join(f"- '{column}'" for column in NOT_COMPARED)
    found = {}
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            if table.split("_")[0] in ("admission", "runners", "recovery", "leadership", "core"):
                row = f"(to_jsonb(t) {less})::text"
                cursor.execute(f"SELECT md5(string_agg({row}, ',' ORDER BY {row})) FROM {table} t")  # noqa: S608
                found[table] = cursor.fetchone()[0]
    return found
