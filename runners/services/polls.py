"""One look at the database for all open polls of a process: who they are, what concerns them, what they could have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from admission.services.judging import Profile, Suitable, profile_of, suitable_runs
from controlplane.core.sql import rows
from runners import sql
from runners.services.fleet import RunnerIdentity, find_runners, runner_driver

Claim = tuple[int, str]
"""(runner, request id)"""


@dataclass(frozen=True, slots=True)
class Asked:
    """What one poll asks for. Its slots are bounded by what the server knows of the runner once it is known."""

    hash: bytes
    request_id: str
    slots: int
    memory_mib: int | None = None
    cpu: float | None = None

    def wants(self, runner: RunnerIdentity) -> int:
        """How many runs it may be given."""
        return min(self.slots, runner.slots) if runner.mode == "active" and not runner.spent else 0

    def profile(self, runner: RunnerIdentity) -> Profile:
        """What decides which runs suit it."""
        return profile_of(runner_driver(runner), self.memory_mib, self.cpu)


@dataclass(frozen=True, slots=True)
class Question:
    """All that is asked at once."""

    arrived: Sequence[Asked] = ()
    """Polls that nobody has looked at yet."""
    watched: Mapping[bytes, str] = field(default_factory=dict)
    """Open polls by their token, with the mode that their runner was told."""
    claims: Sequence[Claim] = ()
    """Open polls whose claim may have been answered by another process, or on another connection."""
    wanted: Mapping[Profile, int] = field(default_factory=dict)
    """Slots that wait, by profile."""
    announced: bool = False
    """Whether there is a reason to expect work."""


@dataclass(slots=True)
class Seen:
    """What was found."""

    runners: dict[bytes, RunnerIdentity]
    """Whose tokens the arrived ones are, and those that something concerns. Missing: the token is dead."""
    concerned: set[bytes]
    answered: set[Claim]
    suitable: Suitable


def look(question: Question) -> Seen:
    """Five statements at most, however many polls are open; one for what was announced, two while nothing happens.

    No transaction around it.
    """
    concerned = _concerned(question.watched)
    hashes = {asked.hash for asked in question.arrived} | concerned
    runners = find_runners(sorted(hashes)) if hashes else {}
    known = [(asked, runners[asked.hash]) for asked in question.arrived if asked.hash in runners]
    claims = [*question.claims, *((runner.id, asked.request_id) for asked, runner in known)]
    wanted = dict(question.wanted)
    for asked, runner in known:
        if slots := asked.wants(runner):
            profile = asked.profile(runner)
            wanted[profile] = wanted.get(profile, 0) + slots
    return Seen(runners, concerned, _answered(claims), suitable_runs(wanted, announced=question.announced))


def _concerned(watched: Mapping[bytes, str]) -> set[bytes]:
    if not watched:
        return set()
    found = rows(sql.READ_CONCERNED, {"hashes": list(watched), "modes": list(watched.values())})
    return {bytes(row["hash"]) for row in found}


def _answered(claims: Iterable[Claim]) -> set[Claim]:
    asked = list(claims)
    if not asked:
        return set()
    parameters = {"runners": [runner for runner, _ in asked], "request_ids": [name for _, name in asked]}
    return {(row["runner"], row["request_id"]) for row in rows(sql.READ_ANSWERED, parameters)}
