"""By which labels what was made for an attempt is found again, whatever executor made it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runners.agent.assignment import Assignment

LABEL_RUN = "wharfinger.run"
LABEL_ATTEMPT = "wharfinger.attempt"
LABEL_EPOCH = "wharfinger.epoch"


def labels_of_attempt(assignment: Assignment) -> dict[str, str]:
    """Whoever drives it: an adopter looks for these and its maker's own."""
    return {LABEL_RUN: str(assignment.run), LABEL_ATTEMPT: str(assignment.attempt)}


def labels_of(assignment: Assignment, driver: Mapping[str, str]) -> dict[str, str]:
    """Of one hold of it, by the driver with these labels."""
    return {**labels_of_attempt(assignment), LABEL_EPOCH: str(assignment.epoch), **driver}
