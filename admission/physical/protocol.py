"""The scripts of physical admission as typed calls. What each may do is decided inside the script, by Redis's clock.

Every call may be repeated with the same arguments and may take effect late, after its caller gave up, without harm.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Any, Final

from admission.physical import parsing
from admission.physical.entitlement import Entitlement
from admission.physical.errors import Superseded
from admission.physical.gate import Gate, Identity
from admission.physical.keys import Keys
from admission.physical.outside import OutsideRecord, Verify
from admission.physical.redis_adapter import Connection, RedisServer
from admission.physical.results import (
    Acquire,
    Acquired,
    Adopt,
    FencedOwn,
    FenceExpired,
    FenceOwn,
    Free,
    Freed,
    Install,
    Installed,
    PassMark,
    Reason,
    Register,
    Renew,
    Renewed,
    Snapshot,
)
from admission.physical.scripts import load

VERSION: Final = 1

HOLD_SECONDS: Final = 30.0
"""A holder that does not renew for this long is recovered."""

ABORT_SECONDS: Final = 20.0
"""P9: this long after sending the last accepted renewal its holder begins to remove its container, Redis or not."""

FENCE_BATCH: Final = 1000

_FIELD = re.compile(r"[!-~]{1,200}", re.ASCII)
_CONTAINER = re.compile(r"[0-9a-f]{64}", re.ASCII)

_ANOTHER_DATASET = (Reason.NO_CONFIG, Reason.PROTOCOL, Reason.DAEMON, Reason.LEDGER)


def new_token() -> str:
    """A token: random, for one physical attempt, never used again."""
    return secrets.token_hex(16)


class PhysicalSlots:
    """One process's access to the slots of one instance. Safe for threads.

    Errors of every call: `Unavailable` (no answer; it may still take effect), `Refused` (this server or configuration
    must not be used). Those behind the gate, also: `NotVerified`.

    `hold_seconds` is for tests: it is part of the protocol's name, so processes that differ in it refuse each other.
    """

    def __init__(
        self,
        server: RedisServer,
        entitlement: Entitlement,
        outside: OutsideRecord,
        verify: Verify,
        *,
        hold_seconds: float = HOLD_SECONDS,
    ) -> None:
        self.entitlement = entitlement
        self._server = server
        self._keys = Keys.of(entitlement.instance).all
        self._scripts = load(hold_seconds)
        self._outside = outside
        self._gate = Gate(entitlement, f"{VERSION}:{hold_seconds:g}", self._scripts, outside, verify)
        self._pair = (str(entitlement.generation), str(entitlement.limit))

    # ------------------------------------------------------------------ behind the gate

    def acquire(self, token: str, owner: str, run: str = "") -> Acquire:
        """Ask once for a slot. `owner` names this process, `run` what is shown to operators ("12/1": run and attempt).

        WAIT also notes the token as waiting (P15); ask again within 30 s or `leave`.
        """
        try:
            answer = self._gated("acquire", _field(token), _field(owner), *self._pair, _run(run))
        except Superseded:
            return Acquire(Acquired.SUPERSEDED, Reason.OLDER)
        outcome, reason = Acquired(answer[0]), _reason(answer)
        return Acquire(outcome, reason) if reason else Acquire(outcome, None, *answer[1:])

    def install(self) -> Install:
        """Install this process's generation if it is newer than the stored one: every holder is fenced (P11)."""
        try:
            with self._server.connection() as connection:
                identity = self._gate.ensure(connection)
                self._gate.put_generation()
                answer = self._run(connection, identity, "install", *self._pair)
        except Superseded:
            return Install(Installed.SUPERSEDED, Reason.OLDER)
        outcome, reason = Installed(answer[0]), _reason(answer)
        return Install(outcome, reason) if reason else Install(outcome, None, answer[1])

    def register(self, token: str, owner: str, container_id: str) -> Register:
        """Record the created container. Only after `ok` may it be started, once; else it has to be removed."""
        with self._server.connection() as connection:
            identity = self._gate.ensure(connection)
            answer = self._run(
                connection, identity, "register", _field(token), _field(owner), _container(container_id)
            )
        return Register(answer[0] == "ok", _reason(answer), identity.ledger)

    def adopt(self, token: str, old_owner: str, new_owner: str) -> Adopt:
        """Take over a running, unexpired token of a process proven gone (R10). Inspect the container afterwards."""
        answer = self._gated("adopt", _field(token), _field(old_owner), _field(new_owner))
        return Adopt(answer[0] == "ok", _reason(answer))

    # ------------------------------------------------------------------ also before it passed

    def renew(self, token: str, owner: str) -> Renew:
        """30 s more. Take the monotonic time before the call: P9 counts from there."""
        answer = self._ungated("renew", _field(token), _field(owner))
        return Renew(Renewed(answer[0]), _reason(answer))

    def fence_expired(self, limit: int = FENCE_BATCH) -> FenceExpired:
        """Fence what expired; returns everything that is fenced, with the id recorded now, to be removed and freed."""
        answer = self._ungated("fence_expired", *self._pair, str(limit))
        if answer[0] == "ok":
            return FenceExpired(parsing.fenced(answer[1:]))
        return FenceExpired((), _reason(answer))

    def fence_own(self, token: str, owner: str) -> FenceOwn:
        """First step of a release: from now on nothing can be registered under the token."""
        answer = self._ungated("fence_own", _field(token), _field(owner))
        outcome = FencedOwn(answer[0])
        if outcome is FencedOwn.FENCED:
            return FenceOwn(outcome, parsing.optional(answer[1]))
        return FenceOwn(outcome, None, _reason(answer))

    def free(self, token: str, container_id: str | None) -> Free:
        """Last step. `container_id` is the one whose absence was confirmed (404); None: none was recorded, and a
        listing of the token's label in all states, made after the fence, was empty.
        """
        answer = self._ungated("free", _field(token), "-" if container_id is None else _container(container_id))
        return Free(Freed(answer[0]), _reason(answer))

    def wait_on(self, token: str, owner: str, run: str = "") -> None:
        """Note the token as waiting, for the metric; `acquire` does so by itself when it answers WAIT."""
        self._plain("waiting_refresh", _field(token), _field(owner), _run(run))

    def leave(self, token: str) -> None:
        """Stop waiting: the metric forgets the token at once."""
        self._plain("waiting_remove", _field(token))

    def read(self) -> Snapshot:
        """Everything, from one instant."""
        with self._server.connection() as connection:
            return self._gate.read(connection)

    # ------------------------------------------------------------------ the pass over the containers

    def ensure_verified(self) -> None:
        """Pass the gate now, and compare again what may have changed since: the periodic pass begins with it.

        Compares configuration, ledger, generation; looks for containers without a token; initialises what is missing.
        """
        with self._server.connection() as connection:
            self._gate.recheck(connection)

    @property
    def durability_warnings(self) -> tuple[str, ...]:
        """What would let Redis forget holders, as last looked at; self-hosted instances go on in spite of it."""
        return self._gate.warnings

    def same_ledger(self, ledger: str) -> bool:
        """Whether that ledger is still the one known on the daemon.

        Asked between `register` and the start, with the ledger that registered, it keeps two Redis servers from
        admitting for one instance: whoever begins another ledger puts it on the daemon first and lists the containers
        then. What this process believes in by now is no answer: another thread may have gone over to the new one.
        """
        mark = self._outside.ledger()
        return mark is not None and mark.ledger == ledger

    def begin_pass(self) -> PassMark:
        """Before the listing of a pass: what `clear_lockdown` may later rest on."""
        snapshot = self.read()
        return PassMark(snapshot.run_id, snapshot.config.lockdown_id if snapshot.config else "")

    def set_lockdown(self, reason: str) -> str:
        """Stop acquire, register, adopt and install for every process: a started container without a token was found.

        Returns the lockdown's id, also of one that was set already; empty: refused, this dataset is not ours.
        """
        answer = self._ungated("lockdown_set", secrets.token_hex(8), reason)
        return "" if answer[0] == "refused" else str(answer[1])

    def clear_lockdown(self, mark: PassMark) -> bool:
        """After a complete pass that began with `mark` and found no container without a token.

        False: it is still set, because the server or the lockdown is another one by now: pass again.
        """
        with self._server.connection() as connection:
            identity = self._gate.ensure(connection)
            if connection.run_id != mark.run_id:
                return False
            answer = self._run(connection, identity, "lockdown_clear", mark.lockdown_id)
        return bool(answer[0] in ("cleared", "clear"))

    def close(self) -> None:
        """Close the connections that are idle."""
        self._server.close()

    # ------------------------------------------------------------------ how

    def _gated(self, name: str, *arguments: str) -> list[Any]:
        with self._server.connection() as connection:
            return self._run(connection, self._gate.ensure(connection), name, *arguments)

    def _ungated(self, name: str, *arguments: str) -> list[Any]:
        with self._server.connection() as connection:
            return self._run(connection, self._gate.identity(), name, *arguments)

    def _plain(self, name: str, *arguments: str) -> None:
        with self._server.connection() as connection:
            connection.script(self._scripts[name], self._keys, arguments)

    def _run(self, connection: Connection, identity: Identity, name: str, *arguments: str) -> list[Any]:
        answer = connection.script(self._scripts[name], self._keys, (*identity.arguments, *arguments))
        if _reason(answer) in _ANOTHER_DATASET:
            self._gate.forget()
        return answer


class SlotsReader:
    """Reads an instance's slots and nothing else: for pages and metrics of processes that execute nothing."""

    def __init__(self, server: RedisServer, instance: str) -> None:
        self._server = server
        self._keys = Keys.of(instance).all
        self._script = load(HOLD_SECONDS)["read"]

    def read(self) -> Snapshot:
        """Everything, from one instant."""
        with self._server.connection() as connection:
            return parsing.snapshot(connection.script(self._script, self._keys, ()), connection.run_id)

    def close(self) -> None:
        """Close the connections that are idle."""
        self._server.close()


def _reason(answer: Sequence[Any]) -> Reason | None:
    if answer[0] in ("refused", "superseded", "changed"):
        return Reason(answer[1])
    return None


def _field(value: str) -> str:
    if _FIELD.fullmatch(value):
        return value
    raise ValueError(f"{value!r}: tokens, owners and runs are 1 to 200 printable ASCII characters without spaces")


def _run(value: str) -> str:
    return _field(value) if value else "-"


def _container(value: str) -> str:
    if _CONTAINER.fullmatch(value):
        return value
    raise ValueError(f"{value!r} is not a full container id: only that one is immutable")
