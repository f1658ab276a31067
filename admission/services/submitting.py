"""Submit: validate, check the queue's depth, insert. Idempotent by key (rules A21, A25, A27)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from time import monotonic
from typing import Any

from django.db import OperationalError, transaction
from pydantic import ValidationError

from admission.models import Batch, Tenant
from admission.references import missing_references
from admission.services.serving import warnings_for
from admission.spec import RunSpec, parse_spec
from admission.sql import submitting as sql
from admission.states import Scope
from controlplane.core.audit import Actor
from controlplane.core.conf import conf
from controlplane.core.errors import IdempotencyMismatch, InvalidInput, NotFound, TryLater, field_errors
from controlplane.core.sql import Row, execute, one, rows
from controlplane.core.wakeups import announce

MAX_RUNS = 1000
MAX_KEY = 200
DEFAULT_KEY_LIMIT = 1
DEADLOCK_SQLSTATE = "40P01"
_DEADLOCK_TRIES = 3


class Outcome(StrEnum):
    """What became of one submitted run."""

    CREATED = "created"
    EXISTED = "existed"
    CONFLICT = "conflict"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Submission:
    """One run to submit: its specification as given, and the caller's idempotency key."""

    spec: Any
    key: str | None = None


@dataclass(slots=True)
class Submitted:
    """The answer for one submission, at the same position."""

    outcome: Outcome
    run: int | None = None
    errors: list[dict[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """What its submitter should know; the run is queued all the same."""


@dataclass(slots=True)
class _Item:
    position: int
    spec: RunSpec
    key: str | None
    stored: dict[str, Any]
    hash: str


def submit_run(tenant: Tenant, spec: Any, *, actor: Actor, key: str | None = None) -> Submitted:
    """Submit one run.

    Raises:
        InvalidInput: with one entry per wrong field.
        IdempotencyMismatch: the key came before with another body.
        TryLater: a queue depth is reached.
    """
    result = submit_runs(tenant, [Submission(spec, key)], actor=actor)[0]
    if result.outcome is Outcome.INVALID:
        raise InvalidInput("The run specification is wrong.", errors=result.errors)
    if result.outcome is Outcome.CONFLICT:
        raise IdempotencyMismatch(
            f"Idempotency key {key!r} was used for another specification.", hint="Use a new key for a new run."
        )
    return result


def submit_runs(
    tenant: Tenant, submissions: Sequence[Submission], *, actor: Actor, batch: str | None = None
) -> list[Submitted]:
    """Submit up to `MAX_RUNS` runs in one transaction; a wrong one does not hinder the others.

    Returns one answer per submission, in order. Raises `TryLater` before anything is written when the queue is full.
    """
    if len(submissions) > MAX_RUNS:
        raise InvalidInput(f"{len(submissions)} runs at once; at most {MAX_RUNS}.", hint="Send them in parts.")
    results: list[Submitted | None] = [None] * len(submissions)
    items = _with_references(tenant, _validate(submissions, results), results)
    if items:
        _check_fleet(len(items))
        _insert_repeating(tenant, items, results, actor, batch)
        _warn(tenant, items, results)
    assert all(r is not None for r in results)  # noqa: S101 - each position was answered above
    return [r for r in results if r is not None]


def _warn(tenant: Tenant, items: Sequence[_Item], results: list[Submitted | None]) -> None:
    for item, warnings in zip(items, warnings_for(tenant.pk, [item.spec for item in items]), strict=True):
        result = results[item.position]
        if result is not None and result.run is not None:
            result.warnings = warnings


def _insert_repeating(
    tenant: Tenant, items: Sequence[_Item], results: list[Submitted | None], actor: Actor, batch: str | None
) -> None:
    """Two submits of the same keys in another order wait for each other; the one that is undone begins again.

    Sorting the keys instead would give the runs another place in the queue than the caller's order.
    """
    for tries_left in range(_DEADLOCK_TRIES - 1, -1, -1):
        try:
            _insert(tenant, items, results, actor, batch)
            return
        except OperationalError as error:
            if not tries_left or getattr(error.__cause__, "sqlstate", "") != DEADLOCK_SQLSTATE:
                raise


def _validate(submissions: Sequence[Submission], results: list[Submitted | None]) -> list[_Item]:
    items: list[_Item] = []
    first: dict[str, _Item] = {}
    for position, submission in enumerate(submissions):
        try:
            spec = parse_spec(submission.spec)
            key = _check_key(submission.key)
        except ValidationError as error:
            results[position] = Submitted(Outcome.INVALID, errors=field_errors(error))
            continue
        except InvalidInput as error:
            results[position] = Submitted(
                Outcome.INVALID, errors=[{"field": "idempotency_key", "error": error.detail}]
            )
            continue
        stored = spec.stored()
        item = _Item(position, spec, key, stored, _hash(stored))
        if key is not None and (twin := first.setdefault(key, item)) is not item and twin.hash != item.hash:
            results[position] = Submitted(Outcome.CONFLICT)
            continue
        items.append(item)
    return items


def _with_references(tenant: Tenant, items: Sequence[_Item], results: list[Submitted | None]) -> list[_Item]:
    """Those that name nothing that is missing. A repeat of a key is not asked: its run is there already."""
    missing = missing_references([(tenant.pk, item.spec) for item in items])
    known = _known_keys(tenant, [item for item, (_, sentence) in zip(items, missing, strict=True) if sentence])
    sound = []
    for item, (field_name, sentence) in zip(items, missing, strict=True):
        if sentence and item.key not in known:
            results[item.position] = Submitted(Outcome.INVALID, errors=[{"field": field_name, "error": sentence}])
        else:
            sound.append(item)
    return sound


def _known_keys(tenant: Tenant, items: Sequence[_Item]) -> set[str]:
    keys = [item.key for item in items if item.key is not None]
    return (
        {row["idempotency_key"] for row in rows(sql.READ_BY_KEY, {"tenant_id": tenant.pk, "keys": keys})}
        if keys
        else set()
    )


def _check_key(key: str | None) -> str | None:
    if key is None:
        return None
    if not key or len(key) > MAX_KEY or not key.isprintable():
        raise InvalidInput(f"An idempotency key has 1 to {MAX_KEY} printable characters.")
    return key


def _hash(stored: dict[str, Any]) -> str:
    """Equal for equal meaning: defaults are left out, keys sorted."""
    return hashlib.sha256(json.dumps(stored, sort_keys=True).encode()).hexdigest()


def _check_fleet(count: int) -> None:
    """Backpressure before anything is reserved. Counted, not locked: a burst may pass it by what is under way."""
    cap = conf().queue_depth_global
    if _fleet_depth.read(cap + 1) + count > cap:
        raise TryLater(f"The fleet's queue of {cap} runs is full.", retry_after_seconds=30, code="queue_full")


class _FleetDepth:
    """The fleet's depth, counted once a second a process.

    Counting a million rows costs 0.1 s; a cap may lag by one.
    """

    def __init__(self) -> None:
        self._at = float("-inf")
        self._depth = 0

    def read(self, limit: int) -> int:
        if monotonic() - self._at > 1:
            row = one(sql.COUNT_QUEUED, {"limit": limit})
            self._depth = row["depth"] if row else 0
            self._at = monotonic()
        return self._depth

    def forget(self) -> None:
        """Count again at the next reading."""
        self._at = float("-inf")


_fleet_depth = _FleetDepth()


def _insert(
    tenant: Tenant, items: Sequence[_Item], results: list[Submitted | None], actor: Actor, batch: str | None
) -> None:
    counters = _counters(tenant, items)
    if not counters and not batch:
        # The usual submit: one statement, which is a transaction by itself.
        inserted = _insert_runs(tenant, items, actor, None)
        announce()
    else:
        with transaction.atomic():
            if one(sql.LOCK_SUBMITTER, {"tenant_id": tenant.pk}) is None:
                raise _takes_none(tenant)
            _ensure_counters(tenant, counters)
            inserted = _insert_runs(tenant, items, actor, _batch(tenant, batch) if batch else None)
            announce()
    keyless = iter([r["id"] for r in inserted if r["idempotency_key"] is None])
    created = {r["idempotency_key"]: r["id"] for r in inserted if r["idempotency_key"] is not None}
    asked = [item.key for item in items if item.key is not None and item.key not in created]
    existing = {r["idempotency_key"]: r for r in _by_key(tenant, asked)}
    if len(existing) < len(set(asked)):
        # Runs go with their tenant only.
        raise _takes_none(tenant)
    for item in items:
        results[item.position] = _answer(item, created, existing, keyless)


def _insert_runs(tenant: Tenant, items: Sequence[_Item], actor: Actor, batch_id: int | None) -> list[Row]:
    """Those that are new. Raises NotFound for a tenant that goes, TryLater when its queue is full."""
    cap = conf().queue_depth_tenant if tenant.queue_depth is None else tenant.queue_depth
    room = cap - len(items)
    found = rows(
        sql.INSERT_RUNS,
        {
            "tenant_id": tenant.pk,
            "limit": cap + 1,
            "room": room,
            "batch_id": batch_id,
            "created_by": actor.name,
            "runs": json.dumps([_row(item) for item in _without_twins(items)]),
        },
    )
    if not found[0]["lives"]:
        raise _takes_none(tenant)
    if found[0]["depth"] > room:
        raise TryLater(
            f"Tenant {tenant.slug!r} has {found[0]['depth']} runs queued; at most {cap}.",
            retry_after_seconds=10,
            code="tenant_queue_full",
        )
    return [row for row in found if row["id"] is not None]


def _takes_none(tenant: Tenant) -> NotFound:
    return NotFound(f"There is no tenant {tenant.slug!r} that takes runs.")


def _by_key(tenant: Tenant, keys: Sequence[str]) -> list[Row]:
    return rows(sql.READ_BY_KEY, {"tenant_id": tenant.pk, "keys": list(keys)}) if keys else []


def _without_twins(items: Sequence[_Item]) -> list[_Item]:
    seen: set[str] = set()
    unique = []
    for item in items:
        if item.key is None or item.key not in seen:
            unique.append(item)
        if item.key is not None:
            seen.add(item.key)
    return unique


def _answer(item: _Item, created: dict[str, int], existing: Mapping[str, Any], keyless: Any) -> Submitted:
    if item.key is None:
        return Submitted(Outcome.CREATED, next(keyless))
    if item.key in created:
        return Submitted(Outcome.CREATED, created[item.key])
    found = existing[item.key]
    if found["request_hash"] != item.hash:
        return Submitted(Outcome.CONFLICT, None)
    return Submitted(Outcome.EXISTED, found["id"])


def _batch(tenant: Tenant, name: str) -> int:
    if len(name) > MAX_KEY:
        raise InvalidInput(f"A batch's name has at most {MAX_KEY} characters.")
    return Batch.objects.get_or_create(tenant=tenant, name=name)[0].pk


def _counters(tenant: Tenant, items: Sequence[_Item]) -> list[tuple[str, str]]:
    """The shared limits that these runs name, in the order of locks."""
    wanted: set[tuple[str, str]] = set()
    for item in items:
        if item.spec.harness:
            wanted.add((Scope.HARNESS.value, item.spec.harness))
        if item.spec.concurrency_key:
            wanted.add((Scope.KEY.value, f"{tenant.pk}:{item.spec.concurrency_key}"))
    return sorted(wanted)


def _ensure_counters(tenant: Tenant, counters: Sequence[tuple[str, str]]) -> None:
    if not counters:
        return
    execute(
        sql.ENSURE_COUNTERS,
        {
            "scopes": [scope for scope, _ in counters],
            "keys": [key for _, key in counters],
            "tenants": [tenant.pk if scope == Scope.KEY.value else None for scope, _ in counters],
            "limits": [DEFAULT_KEY_LIMIT if scope == Scope.KEY.value else None for scope, _ in counters],
        },
    )


def _row(item: _Item) -> dict[str, Any]:
    spec = item.spec
    return {
        "position": item.position,
        "name": spec.name or "",
        "kind": spec.kind,
        "spec": item.stored,
        "labels": spec.labels,
        "backend": spec.backend or "",
        "harness": spec.harness or "",
        "concurrency_key": spec.concurrency_key or "",
        "weight": spec.weight,
        "memory_mib": spec.resources.memory_mib,
        "cpu": spec.resources.cpu,
        "priority": spec.priority,
        "not_before": spec.not_before.isoformat() if spec.not_before else None,
        "queue_timeout": spec.queue_timeout_seconds,
        "timeout": spec.timeout_seconds,
        "max_tries": spec.retry.max_attempts,
        "retry_on_interrupt": spec.retry.on_interrupt == "retry",
        "retry_on_failure": spec.retry.on_failure == "retry",
        "backoff": spec.retry.backoff_seconds,
        "idempotency_key": item.key,
        "request_hash": item.hash,
    }
