"""Who asks for runs, as admission sees it: a replica or a runner.

Its row proves inside the admitting transaction that it lives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from admission.states import DriverKind

if TYPE_CHECKING:
    from admission.picking import Envelope


class DriverGone(Exception):
    """The driver was declared dead, revoked, or is draining: it gets nothing. Its holds are settled elsewhere."""


@dataclass(frozen=True, slots=True)
class Note:
    """What a driver wants to stand or fall with an admission: the answer to its claim, so that it can be repeated."""

    statement: str
    """`admission.sql.admitting.admit_runs`, with what it writes too."""
    parameters: Mapping[str, object]
    forget: Callable[[], None]
    """Called in an admitting transaction that admitted nothing and is committed all the same."""


@dataclass(frozen=True, slots=True)
class Driver:
    """One living driver.

    `lock` runs in the admitting transaction, before any other lock: it takes `FOR KEY SHARE` on the driver's row and
    answers whether it may still be given work. A declaration of death updates that row's key, so it waits for
    admissions under way and excludes later ones; without it a dead driver could be given a run that nobody reclaims.
    """

    kind: DriverKind
    id: int
    name: str
    lock: Callable[[], bool]
    incarnation: UUID | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    backends: tuple[str, ...] = ()
    tenant_id: int | None = None
    lease_seconds: float | None = None
    """Set for runners: their runs are taken by lapse of this. Replicas' runs are taken by their heartbeat."""
    narrow: Callable[[Envelope], Envelope] | None = None
    """Set where its machine is bounded: takes from an envelope what the machine has not.

    Runs in the admitting transaction, after `lock`, and holds off the other drivers of that machine until the end of
    it: each would otherwise read the same room and be given all of it."""
    note: Note | None = None

    def identity(self) -> dict[str, object]:
        """The parameters by which every later statement of this driver proves itself."""
        return {"driver_kind": self.kind.value, "driver_id": self.id}
