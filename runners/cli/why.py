"""`wharfinger why`: the answer of the server, for people."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

SHOWN = 5


def show_why(answer: Mapping[str, Any]) -> None:
    """The short answer, then each blocker with the oldest holders, then its place in line."""
    lines = [f"run {answer['run']} of {answer['tenant']} is {answer['state']}", answer["sentence"]]
    for number, blocker in enumerate(answer["blockers"], 1):
        lines.append(f"{number}. [{blocker['code']}] {blocker['sentence']}")
        lines += [_holder(holder) for holder in blocker["holders"][:SHOWN]]
        if (more := blocker["holder_count"] - SHOWN) > 0:
            lines.append(f"     and {more} more")
    if standing := answer["standing"]:
        lines.append(_standing(standing))
    if answer["next_look_at"]:
        lines.append(f"not before {answer['next_look_at']}")
    sys.stdout.write("\n".join([*lines, f"as of {answer['as_of']}"]) + "\n")


def _holder(holder: Mapping[str, Any]) -> str:
    who = f"run {holder['holder']}" if holder["run"] else holder["holder"] or "another tenant's"
    where = f" on {holder['driver']}" if holder["driver"] else ""
    heard = ", not heard" if holder["reachable"] is False else ""
    return f"     {who}{where}: weight {holder['weight']}, lease {holder['lease_left_seconds']:.0f} s left{heard}"


def _standing(standing: Mapping[str, Any]) -> str:
    beyond = "beyond " if standing["position_beyond"] else ""
    return (
        f"place {beyond}{standing['position']} of its tenant; {standing['tenants_ahead']} tenants before its own; "
        f"share {standing['share']:.1%}, {standing['virtual_lag']:+.2f} ahead of it"
    )
