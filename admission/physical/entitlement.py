"""How many executions this instance may have at once, from the server's environment and nothing else (P1, P3)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from admission.physical.keys import instance_hash

FLEET_SECRET = "CONTROLPLANE_FLEET_SECRET"  # noqa: S105 - the variable's name
INSTANCE_ID = "CONTROLPLANE_INSTANCE_ID"
TIER = "CONTROLPLANE_WORKER_CONCURRENCY"
LIMIT = "CONTROLPLANE_RUN_LIMIT"
GENERATION = "CONTROLPLANE_RUN_GENERATION"

TIERS = {"2": "Solo", "6": "Team", "12": "Scale"}
LARGEST_LIMIT = 10_000
LARGEST_GENERATION = 10**12
"""Both are exact in the double-precision numbers of a script, and a script looks at every holder."""

_WHOLE = re.compile(r"0|[1-9][0-9]{0,14}", re.ASCII)
_ID = re.compile(r"[!-~](?:[ -~]{0,198}[!-~])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Entitlement:
    """At most `limit` executions of this instance at once; a change counts only with a higher generation."""

    instance_id: str
    limit: int
    generation: int
    hosted: bool

    @property
    def instance(self) -> str:
        """The instance's hash, as in keys and labels."""
        return instance_hash(self.instance_id)


@dataclass(frozen=True, slots=True)
class Unrestricted:
    """Self-hosted without a limit: executions are not counted."""


@dataclass(frozen=True, slots=True)
class EntitlementRefused:
    """The environment says something that cannot be followed: nothing may be executed."""

    hosted: bool
    problems: tuple[str, ...]

    @property
    def message(self) -> str:
        """Everything that has to be set, in one line."""
        return "; ".join(self.problems)


Resolved = Entitlement | Unrestricted | EntitlementRefused


def resolve(environment: Mapping[str, str]) -> Resolved:
    """The entitlement that these variables give.

    The secret marks a hosted instance by being there, whatever it says, also empty: what became of its value must not
    decide whether a paid limit holds.
    """
    hosted = FLEET_SECRET in environment
    if not hosted and not environment.get(LIMIT):
        return Unrestricted()
    problems = list(_instance_problems(environment.get(INSTANCE_ID, ""), hosted=hosted))
    limit = _tier(environment.get(TIER, ""), problems) if hosted else _limit(environment.get(LIMIT, ""), problems)
    generation = _generation(environment.get(GENERATION, ""), problems)
    if problems:
        return EntitlementRefused(hosted, tuple(problems))
    return Entitlement(environment[INSTANCE_ID], limit, generation, hosted)


def _instance_problems(value: str, *, hosted: bool) -> list[str]:
    if _ID.fullmatch(value):
        return []
    why = f"{FLEET_SECRET} marks this instance as hosted" if hosted else f"{LIMIT} is set"
    what = "is missing" if not value else "must be 1 to 200 printable ASCII characters without spaces at its ends"
    return [f"{INSTANCE_ID} {what}: {why}, so set it, the same for every process that shares the limit"]


def _tier(value: str, problems: list[str]) -> int:
    if value in TIERS:
        return int(value)
    tiers = ", ".join(f"{number} ({name})" for number, name in TIERS.items())
    found = f"is {value!r}" if value else "is missing"
    problems.append(f"{TIER} {found}: {FLEET_SECRET} marks this instance as hosted, so set it to one of {tiers}")
    return 0


def _limit(value: str, problems: list[str]) -> int:
    if _WHOLE.fullmatch(value) and 1 <= int(value) <= LARGEST_LIMIT:
        return int(value)
    problems.append(
        f"{LIMIT} is {value!r}: set a whole number from 1 to {LARGEST_LIMIT}, or unset it to lift the limit"
    )
    return 0


def _generation(value: str, problems: list[str]) -> int:
    if not value:
        return 0
    if _WHOLE.fullmatch(value) and int(value) <= LARGEST_GENERATION:
        return int(value)
    problems.append(
        f"{GENERATION} is {value!r}: set a whole number from 0 to {LARGEST_GENERATION}, raised by every change of the "
        "limit, or unset it for generation 0"
    )
    return 0
