"""What those who wait could be given: a hint, so that as many are woken as there is work, and nobody in vain.

A pre-filter only, like every reading before an admission (rule A2): the claim decides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from admission.drivers import Driver
from admission.services.reaping import reap_refusing
from admission.spec import BACKENDS
from admission.sql import admitting as sql
from controlplane.core.sql import Row, rows

MOST_WANTED = 200


@dataclass(frozen=True, slots=True)
class Profile:
    """What decides which runs suit a driver. Idle fleets have few; hashable, so that each is asked for once.

    The hash is worked out once: a thousand polls are summed up by profile at every look.
    """

    tenant_id: int | None
    labels: str
    backends: tuple[str, ...]
    memory_mib: int | None
    cpu: float | None
    hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        whole = (self.tenant_id, self.labels, self.backends, self.memory_mib, self.cpu)
        object.__setattr__(self, "hash", hash(whole))

    def __hash__(self) -> int:
        return self.hash


def profile_of(driver: Driver, memory_mib: int | None, cpu: float | None) -> Profile:
    """The profile of a driver with this much free."""
    labels = json.dumps(dict(driver.labels), sort_keys=True)
    return Profile(driver.tenant_id, labels, tuple(driver.backends), memory_mib, cpu)


@dataclass(slots=True)
class Suitable:
    """What was found for those who wait."""

    runs: dict[Profile, list[int]] = field(default_factory=dict)
    flows: dict[int, Row] = field(default_factory=dict)
    """By run: its tenant's place in the fair order, as `engine.read_flows` reads it."""

    def only_flow(self) -> list[Row]:
        """Of the only run that was found; empty where there are more.

        Of several tenants the look finds the fairest one's runs first, as many as are wanted: who claimed among those
        tenants alone would give that one everything. A claim's own reading spreads.
        """
        return list(self.flows.values()) if len(self.flows) == 1 else []


def suitable_runs(wanted: Mapping[Profile, int], *, announced: bool = False) -> Suitable:
    """Queued runs under limits with headroom, for each profile up to as many as are wanted of it.

    One index probe where nothing waits; spared where something was just `announced`, for then something does. Where
    nothing is found, lapsed permits that keep work from those who wait are reaped once a second (rule A12), so not
    inside a transaction.
    """
    found = Suitable()
    if wanted and (announced or _anything_waits()):
        found = _read_suitable(wanted)
    if wanted and not found.runs and reap_refusing():
        found = _read_suitable(wanted)
    return found


def _read_suitable(wanted: Mapping[Profile, int]) -> Suitable:
    profiles = list(wanted)
    asked = [{"n": n, "wanted": min(wanted[p], MOST_WANTED), **_described(p)} for n, p in enumerate(profiles)]
    found = Suitable()
    parameters = {"profiles": json.dumps(asked), "known_backends": list(BACKENDS)}
    for row in rows(sql.READ_SUITABLE, parameters):
        found.runs.setdefault(profiles[row["n"]], []).append(row["id"])
        found.flows[row["id"]] = row
    return found


def _described(profile: Profile) -> dict[str, object]:
    return {
        "tenant": profile.tenant_id,
        "labels": json.loads(profile.labels),
        "backends": list(profile.backends),
        "memory_mib": profile.memory_mib,
        "cpu": profile.cpu,
    }


def _anything_waits() -> bool:
    return bool(rows(sql.READ_FAIR_ORDER, {"only_tenant": None, "page": 1, "offset": 0}))
