"""One instance as its processes see it: a server, the record on the daemon, what a listing of containers answers."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from admission.physical.entitlement import Entitlement
from admission.physical.keys import Keys
from admission.physical.outside import GenerationMark, LedgerMark, Verified, View
from admission.physical.protocol import PhysicalSlots
from admission.physical.redis_adapter import RedisServer
from tests.physical.server import OwnRedis


def container_id() -> str:
    return secrets.token_hex(32)


class DirectoryRecord:
    """The record outside Redis, of files that only the first can create: what the Docker side does with volumes."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.daemon = "engine-1/nonce-1"

    def daemon_id(self) -> str:
        return self.daemon

    def ledger(self) -> LedgerMark | None:
        return LedgerMark(**found) if (found := self._highest("ledger")) else None

    def put_ledger(self, mark: LedgerMark) -> LedgerMark:
        return LedgerMark(**self._put("ledger", mark.number, {"number": mark.number, "ledger": mark.ledger}))

    def generation(self) -> GenerationMark | None:
        return GenerationMark(**found) if (found := self._highest("generation")) else None

    def put_generation(self, mark: GenerationMark) -> GenerationMark:
        values = {"generation": mark.generation, "limit": mark.limit}
        return GenerationMark(**self._put("generation", mark.generation, values))

    def _highest(self, kind: str) -> dict[str, Any] | None:
        found = sorted(self._place.glob(f"{kind}-*.json"))
        return json.loads(found[-1].read_text()) if found else None

    def _put(self, kind: str, number: int, values: dict[str, Any]) -> dict[str, Any]:
        path = self._place / f"{kind}-{number:015}.json"
        own = self._place / f".{secrets.token_hex(4)}"
        own.write_text(json.dumps(values))
        with contextlib.suppress(FileExistsError):
            os.link(own, path)
        own.unlink()
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def lose(self) -> None:
        for path in self._place.glob("*.json"):
            path.unlink()


@dataclass
class Shelf:
    """Containers of the instance by token label. `stuck` ones cannot be removed."""

    containers: dict[str, str] = field(default_factory=dict)
    stuck: set[str] = field(default_factory=set)
    looks: int = 0

    def verify(self, view: View) -> Verified:
        self.looks += 1
        removed = []
        while True:
            listed = dict(self.containers)
            known = view.read().tokens
            left = {token: cid for token, cid in listed.items() if token not in known}
            if not left:
                return Verified(clean=True, removed=tuple(removed))
            for token, cid in left.items():
                if token in self.stuck:
                    return Verified(clean=False, removed=tuple(removed), problems=(f"{cid} cannot be removed",))
                removed.append(self.containers.pop(token))


class World:
    """What the tests hold: makes processes of the instance, and reads what is stored."""

    def __init__(self, server: OwnRedis, place: Path, *, limit: int = 2, generation: int = 0) -> None:
        self.server = server
        self.instance_id = f"instance {secrets.token_hex(6)}"
        place.mkdir(parents=True, exist_ok=True)
        self.record = DirectoryRecord(place)
        self.shelf = Shelf()
        self.limit, self.generation = limit, generation
        self._opened: list[PhysicalSlots] = []
        self.keys = Keys.of(self.entitlement().instance)

    def entitlement(
        self, limit: int | None = None, generation: int | None = None, *, hosted: bool = True
    ) -> Entitlement:
        return Entitlement(
            self.instance_id,
            self.limit if limit is None else limit,
            self.generation if generation is None else generation,
            hosted,
        )

    def process(
        self,
        limit: int | None = None,
        generation: int | None = None,
        *,
        url: str | None = None,
        hosted: bool = True,
        seconds: float = 5.0,
    ) -> PhysicalSlots:
        """Another process of the instance: connections, gate and beliefs of its own."""
        server = RedisServer(url or self.server.url, seconds)
        entitlement = self.entitlement(limit, generation, hosted=hosted)
        self._opened.append(PhysicalSlots(server, entitlement, self.record, self.shelf.verify))
        return self._opened[-1]

    def close(self) -> None:
        for slots in self._opened:
            slots.close()

    def expire(self, token: str, microseconds: int = 0) -> None:
        """Put the deadline of an entry to the server's present, as if 30 s had gone by."""
        seconds, rest = self.server.client.time()
        fields = self.entry(token).split(" ")
        fields[2] = str(seconds * 1_000_000 + rest + microseconds)
        self.server.client.hset(self.keys.holders, token, " ".join(fields))

    def entry(self, token: str) -> str:
        found = self.server.client.hget(self.keys.holders, token)
        assert found is not None, f"no entry of {token}"
        return str(found)

    def state(self, token: str) -> str:
        return self.entry(token).partition(" ")[0]

    def deadline_us(self, token: str) -> int:
        return int(self.entry(token).split(" ")[2])
