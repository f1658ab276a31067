"""From the arrays that scripts answer to the types of `results`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from admission.physical.results import Config, FencedHolder, Holder, HolderState, Snapshot, Waiter

Flat = Sequence[str]


def _groups(flat: Flat, size: int) -> Iterable[Flat]:
    return (flat[i : i + size] for i in range(0, len(flat), size))


def optional(field: str) -> str | None:
    """'-' stands for none."""
    return None if field == "-" else field


def snapshot(answer: Sequence[Any], run_id: str) -> Snapshot:
    """The answer of `read`."""
    time_us = int(answer[0])
    return Snapshot(
        run_id=run_id,
        time_us=time_us,
        config=_config(dict(_groups(answer[1], 2)), time_us),  # type: ignore[arg-type]
        holders=tuple(sorted((_holder(t, e, time_us) for t, e in _groups(answer[2], 2)), key=_oldest)),
        waiting=tuple(sorted((_waiter(t, e, time_us) for t, e in _groups(answer[3], 2)), key=_oldest)),
    )


def _oldest(item: Holder | Waiter) -> float:
    return -item.age_seconds


def _config(fields: dict[str, str], time_us: int) -> Config | None:
    if "protocol" not in fields:
        return None
    since = int(fields.get("lockdown_since", time_us))
    return Config(
        protocol=fields["protocol"],
        daemon=fields["daemon"],
        limit=int(fields["limit"]),
        generation=int(fields["generation"]),
        ledger_number=int(fields["ledger_number"]),
        ledger=fields["ledger"],
        lockdown_id=fields.get("lockdown", ""),
        lockdown_reason=fields.get("lockdown_reason", ""),
        lockdown_age_seconds=(time_us - since) / 1e6,
    )


def _holder(token: str, entry: str, time_us: int) -> Holder:
    state, generation, deadline, since, owner, container, run = entry.split(" ")
    return Holder(
        token=token,
        state=HolderState(state),
        owner=owner,
        generation=int(generation),
        age_seconds=(time_us - int(since)) / 1e6,
        deadline_seconds=(int(deadline) - time_us) / 1e6,
        container_id=optional(container),
        run=optional(run) or "",
    )


def _waiter(token: str, entry: str, time_us: int) -> Waiter:
    since, _, owner, run = entry.split(" ")
    return Waiter(token, owner, (time_us - int(since)) / 1e6, optional(run) or "")


def fenced(flat: Flat) -> tuple[FencedHolder, ...]:
    """What follows 'ok' in the answer of `fence_expired`."""
    return tuple(
        FencedHolder(token, optional(container), owner, int(generation), optional(run) or "")
        for token, container, owner, generation, run in _groups(flat, 5)
    )
