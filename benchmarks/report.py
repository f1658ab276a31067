"""What a measurement says: one row, ratio first."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `bar`: what the ratio must meet, as text; `met`: whether it does (None: no bar)."""

    what: str
    ratio: float
    bar: str
    met: bool | None
    ours: str
    other: str
    spread: str = ""


def median_ratio(ours: Sequence[float], others: Sequence[float]) -> tuple[float, str]:
    """The median of the ratios of neighbouring rounds, and their range: noise hits both of a pair alike."""
    ratios = [a / b for a, b in zip(ours, others, strict=True)]
    return statistics.median(ratios), f"{min(ratios):.2f}-{max(ratios):.2f}"


def interleaved(
    rounds: int, first: Callable[[], float], second: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Measure both in turns, the order changing each round."""
    a: list[float] = []
    b: list[float] = []
    for number in range(rounds):
        for mine, measure in ((a, first), (b, second)) if number % 2 else ((b, second), (a, first)):
            mine.append(measure())
    return a, b


def table(rows: Iterable[Row]) -> str:
    """Markdown."""
    lines = ["| ratio | bar | | what | ours | against | range of ratios |", "|--:|---|---|---|--:|--:|---|"]
    marks = {True: "met", False: "**missed**", None: ""}
    lines += [
        f"| **{r.ratio:.2f}** | {r.bar} | {marks[r.met]} | {r.what} | {r.ours} | {r.other} | {r.spread} |"
        for r in rows
    ]
    return "\n".join(lines)
