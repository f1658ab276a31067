"""False-death protection (rule R13): where silence may have been an outage, nobody is declared dead for one window.

Judged by rows only, so every process comes to the same answer, also `manage.py recover`, which has no beats of its
own. A hold stands on the silent incarnation's row: once for each silence, of fixed length, ended by a beat.
"""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.core.conf import conf
from controlplane.core.sql import rows
from recovery import sql
from recovery.services.situation import Silent, Situation, together_seconds

LEAST_PEERS = 3
OUTAGE = "the database itself may have been away: every silent replica gets one window to come back"
TOGETHER = "most replicas fell silent at once, which an outage does: they get one window to come back"


def judge(situation: Situation) -> dict[int, str]:
    """Which silent incarnations to hold that were not held in this silence yet, and why."""
    new = [s for s in situation.dead if s.stale and not s.declared and s.held_seconds is None]
    if _was_away(situation):
        return {s.dead.id: OUTAGE for s in new}
    return {s.dead.id: TOGETHER for s in new if _fell_with_most(s.silent_seconds, situation)}


def hold(found: dict[int, str]) -> dict[int, str]:
    """Write them down; returns those that still were silent, and nobody's yet, with their reason."""
    written: dict[int, str] = {}
    for why in sorted(set(found.values())):
        ids = [replica for replica, reason in found.items() if reason == why]
        given = {"replicas": ids, "why": why, "stale_seconds": conf().replica_stale_seconds}
        written |= {row["id"]: why for row in rows(sql.HOLD, given)}
    return written


def is_held(silent: Silent) -> bool:
    """Not to be declared dead yet."""
    return not silent.declared and (silent.held_seconds or 0.0) > 0


def is_unsure(situation: Situation) -> bool:
    """We came a moment ago and nobody else is heard: a dead fleet looks like one that is cut off.

    Two beat intervals later it does not: who lives has beaten by then.
    """
    young = situation.own_age is not None and situation.own_age < 2 * conf().heartbeat_interval_seconds
    return young and not situation.accompanied


def _was_away(situation: Situation) -> bool:
    """Signs of an outage, and nobody who beat all through the window."""
    return not situation.witnessed and (situation.resumed or situation.restarted)


def _fell_with_most(silent_seconds: float, situation: Situation) -> bool:
    if situation.peers < LEAST_PEERS:
        return False
    return 2 * _largest_together(silent_seconds, sorted(situation.silent)) > situation.peers


def _largest_together(one: float, silences: Sequence[float]) -> int:
    """The most silences, this one among them, that began within one interval of each other."""
    span, most = together_seconds(), 0
    for start in silences:
        if one - span <= start <= one:
            most = max(most, sum(start <= other <= start + span for other in silences))
    return most
