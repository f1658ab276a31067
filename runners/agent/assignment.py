"""What a driver is given and what it gives back. Plain data, shared by replicas and agents."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from admission.spec import RunSpec


class Ending(StrEnum):
    """How an attempt ended, as its driver saw it."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"


class Verdict(StrEnum):
    """The control plane's answer about one (run, epoch); judged by the run row, never by a permit's absence."""

    OK = "ok"
    CANCEL = "cancel"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class RunKey:
    """Names one hold on one run. Everything local is keyed by it: the epoch grows at every change of hands."""

    run: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """One admitted run: this driver holds its permits, and must start it before the start deadline or give it back."""

    run: int
    epoch: int
    attempt: int
    tenant: str
    spec: RunSpec
    # Not in the representation: it ends up in messages about errors.
    job_token: str = field(default="", repr=False)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    """Its environment's."""
    registry: str = field(default="", repr=False)
    """The value of its `registry_secret`: for the pull of its image, never for its environment."""

    @property
    def key(self) -> RunKey:
        """What names this hold."""
        return RunKey(self.run, self.epoch)

    def given(self, values: Mapping[str, str]) -> Assignment:
        """The same with the secrets that it names, each where it belongs."""
        return replace(
            self,
            secrets={name: values[name] for name in self.spec.secrets if name in values},
            registry=values.get(self.spec.registry_secret or "", ""),
        )


@dataclass(frozen=True, slots=True)
class Result:
    """The end of one attempt. Sent only when its container (or process tree) is confirmed gone."""

    run: int
    epoch: int
    ending: Ending
    reason: str = ""
    detail: str = ""
    exit_code: int | None = None
    log_end: int | None = None
    """Where the log would end, if not all of it was delivered."""

    @property
    def key(self) -> RunKey:
        """What names this hold."""
        return RunKey(self.run, self.epoch)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What this driver could start now: whole slots, MiB, processors. None = not bounded here."""

    slots: int
    memory_mib: int | None = None
    cpu: float | None = None
