"""The scripts as plain Python over a dictionary: what the table of `models/README.md` says, without Redis."""

from __future__ import annotations

from dataclasses import dataclass, field

from admission.physical.results import Acquired, FencedOwn, Freed, Installed, Reason, Renewed


@dataclass
class Entry:
    state: str
    generation: int
    owner: str
    container: str | None = None
    expired: bool = False

    @property
    def lapsed(self) -> Reason | None:
        if self.state == "fenced":
            return Reason.FENCED
        return Reason.EXPIRED if self.expired else None


@dataclass
class Model:
    limit: int
    generation: int
    lockdown: bool = False
    holders: dict[str, Entry] = field(default_factory=dict)

    def acquire(self, token: str, owner: str, generation: int, limit: int) -> tuple[Acquired, Reason | None]:
        if self.lockdown:
            return Acquired.REFUSED, Reason.LOCKDOWN
        if generation != self.generation or limit != self.limit:
            older = generation < self.generation
            return (Acquired.SUPERSEDED, Reason.OLDER) if older else (Acquired.REFUSED, Reason.NEWER)
        if (entry := self.holders.get(token)) is not None:
            refused = Reason.OWNER if entry.owner != owner else entry.lapsed
            return (Acquired.REFUSED, refused) if refused else (Acquired.HELD, None)
        if any(e.generation < self.generation for e in self.holders.values()) or len(self.holders) >= self.limit:
            return Acquired.WAIT, None
        self.holders[token] = Entry("reserved", generation, owner)
        return Acquired.GRANTED, None

    def install(self, generation: int, limit: int) -> Installed:
        if self.lockdown:
            return Installed.REFUSED
        if generation < self.generation:
            return Installed.SUPERSEDED
        if generation == self.generation:
            return Installed.SAME
        self.generation, self.limit = generation, limit
        for entry in self.holders.values():
            entry.state = "fenced"
        return Installed.INSTALLED

    def _refusal(self, token: str, owners: tuple[str, ...]) -> Reason | None:
        if self.lockdown:
            return Reason.LOCKDOWN
        if (entry := self.holders.get(token)) is None:
            return Reason.UNKNOWN
        return Reason.OWNER if entry.owner not in owners else entry.lapsed

    def register(self, token: str, owner: str, container: str) -> Reason | None:
        if (refusal := self._refusal(token, (owner,))) is not None:
            return refusal
        entry = self.holders[token]
        if entry.state == "running":
            return None if entry.container == container else Reason.CONTAINER
        entry.state, entry.container = "running", container
        return None

    def adopt(self, token: str, old: str, new: str) -> Reason | None:
        if (refusal := self._refusal(token, (old, new))) is not None:
            return refusal
        entry = self.holders[token]
        if entry.state != "running":
            return Reason.STATE
        entry.owner = new
        return None

    def renew(self, token: str, owner: str) -> Renewed:
        if (entry := self.holders.get(token)) is None:
            return Renewed.UNKNOWN
        if entry.owner != owner:
            return Renewed.DISPLACED
        return Renewed(entry.lapsed.value) if entry.lapsed else Renewed.RENEWED

    def fence_expired(self, generation: int) -> set[tuple[str, str | None]] | None:
        if generation != self.generation:
            return None
        found = {(token, entry.container) for token, entry in self.holders.items() if entry.lapsed}
        for token, _ in found:
            self.holders[token].state = "fenced"
        return found

    def fence_own(self, token: str, owner: str) -> tuple[FencedOwn, str | None]:
        if (entry := self.holders.get(token)) is None:
            return FencedOwn.UNKNOWN, None
        if entry.owner != owner:
            return FencedOwn.DISPLACED, None
        entry.state = "fenced"
        return FencedOwn.FENCED, entry.container

    def free(self, token: str, container: str | None) -> Freed:
        if (entry := self.holders.get(token)) is None:
            return Freed.ABSENT
        if entry.state != "fenced" or entry.container != container:
            return Freed.CHANGED
        del self.holders[token]
        return Freed.FREED
