"""What reconciliation works on, and the two things it asks of a replica's machine: adopt, and sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from runners.agent.assignment import RunKey


class LeftoversRemain(Exception):
    """What the dead driver executed could not be confirmed gone; its runs stand as debts until it can."""


@dataclass(frozen=True, slots=True)
class Dead:
    """A dead incarnation: its row may be gone already (debts keep this copy)."""

    id: int
    name: str
    incarnation: str
    machine: str
    boot_id: str
    pid: int
    pid_start: int
    executor: str


@dataclass(frozen=True, slots=True)
class Orphan:
    """An open run of a dead incarnation, as read; every act on it proves (run, epoch) again."""

    run: int
    epoch: int
    attempt: int
    state: str

    @property
    def key(self) -> RunKey:
        """What its driver held it by."""
        return RunKey(self.run, self.epoch)


@dataclass(frozen=True, slots=True)
class Finding:
    """What was decided about an orphan instead of taking it away.

    `adopted`: its row names us as its driver now, same attempt, epoch raised (committed before this is answered).
    `deferred`: it cannot be decided now; it becomes a debt and is asked about again.
    """

    outcome: Literal["adopted", "deferred"]
    why: str


Adopt = Callable[[Dead, Sequence[Orphan]], Mapping[RunKey, Finding]]
"""Asked for each batch of a dead incarnation's orphans, while the right to reconcile them is ours, before the sweep
and before anything is taken away. Keys are those of the orphans as given (old epoch). What it does not name is taken
away."""

Sweep = Callable[[Dead], None]
"""Removes what the dead incarnation left on this machine, or raises LeftoversRemain. It comes after `Adopt`: what goes
on under a successor (the run's row shows this attempt open under another driver) is not a leftover."""
