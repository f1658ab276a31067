"""What a metric is. Each app says its own in `metrics.py`; the composition root finds and exposes them.

All are read from the database when asked for: every process says the same, so alerts take `max`, never `sum`, and
nothing is lost with a process. What only grows is given as a count of a stated window: rows that retention deletes
would make a counter fall.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Value:
    """One number; no label may take values without bound."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Metric:
    """A gauge: its name without the product's prefix, in base units, and what it says."""

    name: str
    help: str
    values: tuple[Value, ...]
    labels: tuple[str, ...] = ()


def gauge(name: str, meaning: str, value: float | None) -> Metric:
    """One number; None: not known, so nothing is said."""
    return Metric(name, meaning, () if value is None else (Value(float(value)),))


def gauges(name: str, meaning: str, label: str, values: Mapping[str, float] | Iterable[tuple[str, float]]) -> Metric:
    """One number for each value of a label."""
    pairs = values.items() if isinstance(values, Mapping) else values
    return Metric(name, meaning, tuple(Value(float(number), {label: key}) for key, number in pairs), (label,))
