"""What the scripts answer, typed. Each may be the answer to a repeat; a lost answer is `errors.Unavailable`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why a script did nothing. The first group is about the instance, the second about one token."""

    NO_CONFIG = "no_config"  # the dataset holds no configuration: lost, or never initialised
    PROTOCOL = "protocol"  # written by another version of these scripts
    DAEMON = "daemon"  # counted for another Docker daemon
    LEDGER = "ledger"  # another dataset than the one known on the daemon
    LOCKDOWN = "lockdown"  # a container that nobody counted was found; until a pass finds none
    LIMIT = "limit"  # same generation, other limit
    OLDER = "older"  # the caller's generation was superseded
    NEWER = "newer"  # the caller's generation is not installed yet
    RESTARTED = "restarted"  # the pass that allows this began under another incarnation of the server

    UNKNOWN = "unknown"  # no such token
    FENCED = "fenced"
    EXPIRED = "expired"
    OWNER = "owner"  # the entry names another owner
    CONTAINER = "container"  # another container is recorded under this token
    STATE = "state"  # not in the state that this needs
    CHANGED = "changed"  # not fenced any more, or another id is recorded than the confirmed one


class HolderState(StrEnum):
    """As stored. `recovering` in pages and metrics is: fenced, or past its deadline."""

    RESERVED = "reserved"
    RUNNING = "running"
    FENCED = "fenced"


class Acquired(StrEnum):
    """GRANTED and HELD mean the same right; HELD answers a repeat."""

    GRANTED = "granted"
    HELD = "held"
    WAIT = "wait"  # full, or holders of an older generation are left
    SUPERSEDED = "superseded"  # never for this process: its generation is too old
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Acquire:
    """`recoverable` > 0 with WAIT: `fence_expired` has something to recover."""

    outcome: Acquired
    reason: Reason | None = None
    holders: int = 0
    recoverable: int = 0
    old_holders: int = 0

    @property
    def ok(self) -> bool:
        """Whether the slot is the caller's."""
        return self.outcome in (Acquired.GRANTED, Acquired.HELD)


class Installed(StrEnum):
    """Of a (limit, generation)."""

    INSTALLED = "installed"
    SAME = "same"
    SUPERSEDED = "superseded"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Install:
    """`fenced`: holders that have to be removed before anything of the new generation is granted."""

    outcome: Installed
    reason: Reason | None = None
    fenced: int = 0


@dataclass(frozen=True, slots=True)
class Register:
    """Not `ok`: never start this container, remove it. `ledger`: the one that counts it now."""

    ok: bool
    reason: Reason | None = None
    ledger: str = ""


class Renewed(StrEnum):
    """DISPLACED: stop, remove nothing. Every other one but RENEWED: abort and remove the own container."""

    RENEWED = "renewed"
    FENCED = "fenced"
    UNKNOWN = "unknown"
    EXPIRED = "expired"
    DISPLACED = "displaced"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Renew:
    """The answer to a renewal."""

    outcome: Renewed
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class FencedHolder:
    """To be removed: the recorded id if there is one, else whatever a listing of the token's label finds now."""

    token: str
    container_id: str | None
    owner: str
    generation: int
    run: str


@dataclass(frozen=True, slots=True)
class FenceExpired:
    """Empty with a reason: the caller's configuration is not the installed one, it may not reap."""

    holders: tuple[FencedHolder, ...]
    reason: Reason | None = None


class FencedOwn(StrEnum):
    """UNKNOWN: only remove the own container. DISPLACED: nothing. REFUSED: as UNKNOWN, and say why."""

    FENCED = "fenced"
    UNKNOWN = "unknown"
    DISPLACED = "displaced"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class FenceOwn:
    """With FENCED, the id recorded now: remove it too if it is another than the caller's own."""

    outcome: FencedOwn
    container_id: str | None = None
    reason: Reason | None = None


class Freed(StrEnum):
    """ABSENT is fine: somebody was faster. CHANGED: begin again with `fence_expired` or `fence_own`."""

    FREED = "freed"
    ABSENT = "absent"
    CHANGED = "changed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Free:
    """The answer to a release."""

    outcome: Freed
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class Adopt:
    """Not `ok`: the run is not adopted; physical recovery removes its container."""

    ok: bool
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """The stored configuration; `ledger` names this dataset, `lockdown_id` one setting of the lockdown."""

    protocol: str
    daemon: str
    limit: int
    generation: int
    ledger_number: int
    ledger: str
    lockdown_id: str = ""
    lockdown_reason: str = ""
    lockdown_age_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Holder:
    """One entry. Ages and deadlines are differences to the server's clock at the reading."""

    token: str
    state: HolderState
    owner: str
    generation: int
    age_seconds: float
    deadline_seconds: float
    container_id: str | None
    run: str

    @property
    def recovering(self) -> bool:
        """Still counted, until the removal of its container is confirmed."""
        return self.state is HolderState.FENCED or self.deadline_seconds <= 0


@dataclass(frozen=True, slots=True)
class Waiter:
    """Somebody who asked for a slot and asked again within the last 30 s."""

    token: str
    owner: str
    age_seconds: float
    run: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything, read by one script: consistent in itself."""

    run_id: str
    time_us: int
    config: Config | None
    holders: tuple[Holder, ...]
    waiting: tuple[Waiter, ...]

    @property
    def tokens(self) -> frozenset[str]:
        """Every token that counts, in any state."""
        return frozenset(holder.token for holder in self.holders)

    @property
    def counts(self) -> Counts:
        """The metrics of P15."""
        recovering = sum(h.recovering for h in self.holders)
        reserved = sum(h.state is HolderState.RESERVED and not h.recovering for h in self.holders)
        return Counts(len(self.waiting), reserved, len(self.holders) - recovering - reserved, recovering)


@dataclass(frozen=True, slots=True)
class Counts:
    """Waiting takes no capacity; the sum of the other three does."""

    waiting: int
    reserved: int
    running: int
    recovering: int


@dataclass(frozen=True, slots=True)
class PassMark:
    """When a pass over the containers began: what it found counts for this incarnation and this lockdown only."""

    run_id: str
    lockdown_id: str
