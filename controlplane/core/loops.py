"""What a recurring piece of work is. Each app declares its own in `loops.py`; `leadership` finds and runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Gate(StrEnum):
    """Who may run a loop: one process of the fleet, or each for itself."""

    LEADER = "leader"
    LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Progress:
    """What one step did. `more`: its batch was full, so it is called again, in another transaction."""

    counts: Mapping[str, Any] = field(default_factory=dict)
    more: bool = False


Step = Callable[[], Progress]


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop. `steps` are dotted paths of functions without arguments that return a Progress.

    Of a gated loop each call of a step is one transaction that proves the leader's term; so a step locks rows in the
    one order, does a bounded batch, and never waits for anything but the database. A step that fails is recorded and
    does not keep the others from running. No steps: the process runs it itself and takes only the period from here.
    """

    name: str
    gate: Gate
    seconds: Callable[[], float]
    why: str
    steps: tuple[str, ...] = ()
