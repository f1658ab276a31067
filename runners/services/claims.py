"""A runner's claim: admission through the one engine, with an answer that can be asked for again (rules Q3, Q4)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from admission.drivers import Driver, DriverGone, Note
from admission.engine import Admitted, Envelope, admit, read_flows
from admission.services.reaping import reap_refusing
from admission.services.runs import read_holds
from controlplane.core.sql import Row, execute, one, rows
from runners import sql
from runners.services.secrets import give, names_any

WHILE_CONTESTED = 3


@dataclass(frozen=True, slots=True)
class Claimed:
    """One run of an answer; `spec` as it is stored."""

    run: int
    epoch: int
    attempt: int
    tenant: str
    spec: dict[str, Any]
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Only in the answer of a claim."""


def claim_runs(
    driver: Driver,
    request_id: str,
    envelope: Envelope,
    *,
    judged: bool = False,
    seen: Sequence[Row] = (),
    token: bytes | None = None,
) -> list[Claimed] | None:
    """Up to `envelope.slots` runs for this driver. None: there is nothing for it now, or it may be given nothing.

    The same request id gets the same answer again, without what has moved on since; a repeat that races the first call
    waits for it. Only a claim that got something is remembered. `judged`: the caller has just seen that something fits
    and that the claim has no answer yet; then it is tried without looking again. `seen`: the reading it saw that in.
    `token`: the hash of the one with which it was asked a while ago; where that has died meanwhile, there is nothing.
    """
    for _ in range(WHILE_CONTESTED):
        if not judged:
            answer = read_claim(driver, request_id)
            if answer is not None:
                return answer
            if envelope.slots <= 0 or not _something_waits(driver):
                return None
        claim = Claim(driver, request_id, token)
        try:
            admitted = admit(claim.driver, envelope, seen)
        except DriverGone:
            if claim.is_reserved:
                return None
            # Another connection answered the same request while we waited for its row: read what it said.
            judged, seen = False, ()
            continue
        return [_claimed(a) for a in admitted] or None
    return None


def claim_with_secrets(
    driver: Driver,
    request_id: str,
    envelope: Envelope,
    *,
    judged: bool = False,
    seen: Sequence[Row] = (),
    token: bytes | None = None,
) -> list[Claimed] | None:
    """As `claim_runs`, each with the secrets that it names; one that cannot have them was ended, and is left out."""
    claimed = claim_runs(driver, request_id, envelope, judged=judged, seen=seen, token=token)
    if not claimed:
        return claimed
    given = give(driver, [(one.run, one.epoch) for one in claimed if names_any(one.spec)])
    return [
        replace(one, secrets=given.values.get((one.run, one.epoch), {}))
        for one in claimed
        if (one.run, one.epoch) not in given.refused
    ]


def _something_waits(driver: Driver) -> bool:
    """Outside a transaction and without a write: an idle runner's poll costs two reads, and once a second a third."""
    return bool(read_flows(driver, page=1) or (reap_refusing() and read_flows(driver, page=1)))


class Claim:
    """One claim as the engine serves it: reserved first, its answer written with the admission, or both undone."""

    def __init__(self, driver: Driver, request_id: str, token: bytes | None = None) -> None:
        self._key = {"runner": driver.id, "request_id": request_id}
        self._token = token
        note = Note(sql.CLAIM_RUNS, {"request_id": request_id}, self._forget)
        self.driver = replace(driver, lock=self._reserve, note=note)
        self.is_reserved = False

    def _reserve(self) -> bool:
        row = one(sql.RESERVE_CLAIM, {**self._key, "token": self._token})
        self.is_reserved = row is not None and row["reserved"]
        return row is not None and row["active"]

    def _forget(self) -> None:
        execute(sql.FORGET_CLAIM, self._key)


def read_claim(driver: Driver, request_id: str) -> list[Claimed] | None:
    """The stored answer of a claim; None if there is none."""
    found = rows(sql.READ_CLAIM, {"runner": driver.id, "request_id": request_id})
    if not found:
        return None
    return [_stored(row) for row in found if row["id"] is not None]


def held_runs(driver: Driver) -> list[tuple[Claimed, str]]:
    """Everything the ledger says this runner holds, with its state: what a restarted agent asks first (rule A10)."""
    return [(_stored(row), row["state"]) for row in read_holds(driver)]


def _stored(row: Row) -> Claimed:
    spec = json.loads(row["spec"]) if isinstance(row["spec"], str) else row["spec"]
    return Claimed(row["id"], row["epoch"], row["attempt"], row["tenant"], spec)


def _claimed(admitted: Admitted) -> Claimed:
    return Claimed(admitted.run, admitted.epoch, admitted.attempt, admitted.tenant, admitted.spec.stored())
