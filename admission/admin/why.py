"""The panel of a queued run's page that says why it waits."""

from __future__ import annotations

from typing import Any

from admission.services.blockers import Blocker, Holder
from admission.services.why import Why, explain
from controlplane.admin_base import render

WARN_BELOW_SECONDS = 60


def why_panel(run: int) -> dict[str, Any]:
    """The answer as the template draws it."""
    answer: Why = explain(run)
    return {
        "answer": answer,
        "as_of": render.moment(answer.as_of),
        "blockers": [_blocker(blocker) for blocker in answer.blockers],
        "next_look": render.moment(answer.next_look_at) if answer.next_look_at else None,
        "share": f"{answer.standing.share:.1%}" if answer.standing else "",
        "lag": f"{answer.standing.virtual_lag:+.2f}" if answer.standing else "",
    }


def _blocker(blocker: Blocker) -> dict[str, Any]:
    limited = blocker.scope and blocker.in_flight is not None
    return {
        "row": blocker,
        "badge": render.badge(blocker.code.value.replace("_", " "), "warn"),
        "bar": render.bar(blocker.in_flight or 0, blocker.limit) if limited else "",
        "holders": [_holder(holder) for holder in blocker.holders],
        "more": blocker.holder_count - len(blocker.holders),
    }


def _holder(holder: Holder) -> dict[str, Any]:
    name = f"run {holder.run} · attempt {holder.attempt}"
    return {
        "row": holder,
        "who": render.link("admin:admission_run_change", holder.run, name)
        if holder.run
        else render.code(holder.holder),
        "lease": render.countdown(holder.lease_left_seconds, warn_below=WARN_BELOW_SECONDS),
        "heard": render.badge("not heard", "bad") if holder.reachable is False else "",
    }
