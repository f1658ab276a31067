"""The scripts of physical admission as typed calls. What each may do is decided inside the script, by Redis's clock.

Every call may be repeated with the same arguments and may take effect late, after its caller gave up, without harm.
"""

from __future__ import annotations

import secrets
from typing import Final

from admission.physical.entitlement import Entitlement
from admission.physical.outside import OutsideRecord, Verify
from admission.physical.redis_adapter import RedisServer
from admission.physical.results import (
    Acquire,
    Adopt,
    FenceExpired,
    FenceOwn,
    Free,
    Install,
    PassMark,
    Register,
    Renew,
    Snapshot,
)

HOLD_SECONDS: Final = 30
"""A holder that does not renew for this long is recovered."""

ABORT_SECONDS: Final = 20
"""P9: this long after sending the last accepted renewal its holder begins to remove its container, Redis or not."""

FENCE_BATCH: Final = 50


def new_token() -> str:
    """A token: random, for one physical attempt, never used again."""
    return secrets.token_hex(16)


class PhysicalSlots:
    """One process's access to the slots of one instance. Safe for threads; made anew in a forked child.

    Errors of every call: `Unavailable` (no answer; it may still take effect), `Refused` (this server or configuration
    must not be used). Those behind the gate, also: `NotVerified`.
    """

    def __init__(
        self, server: RedisServer, entitlement: Entitlement, outside: OutsideRecord, verify: Verify
    ) -> None: ...

    # ------------------------------------------------------------------ behind the gate

    def acquire(self, token: str, owner: str, run: str = "") -> Acquire:
        """Ask once for a slot. `owner` names this process, `run` what is shown to operators ("12/1": run and attempt).

        WAIT also notes the token as waiting (P15); ask again within 30 s or `leave`.
        """
        raise NotImplementedError

    def install(self) -> Install:
        """Install this process's generation if it is newer than the stored one: every holder is fenced (P11)."""
        raise NotImplementedError

    def register(self, token: str, owner: str, container_id: str) -> Register:
        """Record the created container. Only after `ok` may it be started, once; else it has to be removed."""
        raise NotImplementedError

    def adopt(self, token: str, old_owner: str, new_owner: str) -> Adopt:
        """Take over a running, unexpired token of a process proven gone (R10). Inspect the container afterwards."""
        raise NotImplementedError

    # ------------------------------------------------------------------ also before it passed

    def renew(self, token: str, owner: str) -> Renew:
        """30 s more. Take the monotonic time before the call: P9 counts from there."""
        raise NotImplementedError

    def fence_expired(self, limit: int = FENCE_BATCH) -> FenceExpired:
        """Fence what expired; returns everything that is fenced, with the id recorded now, to be removed and freed."""
        raise NotImplementedError

    def fence_own(self, token: str, owner: str) -> FenceOwn:
        """First step of a release: from now on nothing can be registered under the token."""
        raise NotImplementedError

    def free(self, token: str, container_id: str | None) -> Free:
        """Last step: `container_id` is the one whose absence was confirmed (404); None: none was recorded, and a
        listing of the token's label in all states, made after the fence, was empty.
        """
        raise NotImplementedError

    def leave(self, token: str) -> None:
        """Stop waiting: the metric forgets the token at once."""
        raise NotImplementedError

    def read(self) -> Snapshot:
        """Everything, from one instant."""
        raise NotImplementedError

    # ------------------------------------------------------------------ the pass over the containers

    def begin_pass(self) -> PassMark:
        """Before the listing of a pass: what `clear_lockdown` may later rest on."""
        raise NotImplementedError

    def set_lockdown(self, reason: str) -> str:
        """Stop acquire, register, adopt and install for every process: a started container without a token was found.

        Returns the lockdown's id; one that is set already stays as it is.
        """
        raise NotImplementedError

    def clear_lockdown(self, mark: PassMark) -> bool:
        """After a complete pass that began with `mark` and found no container without a token. False: not any more."""
        raise NotImplementedError

    def ensure_verified(self) -> None:
        """Pass the gate now: compare ledger and generation, look for containers without token, initialise if nothing
        is stored. What the gated calls do by themselves on a new incarnation; the periodic pass begins with it.
        """
        raise NotImplementedError
