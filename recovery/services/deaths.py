"""Declaring an incarnation dead, and claiming the right to reconcile it: one transaction (T12)."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from controlplane.core.conf import conf
from controlplane.core.sql import one
from recovery import sql


def declare_and_claim(replica_id: int, *, claimant: str, proof: str, seen: datetime | None = None) -> bool:
    """True: this incarnation is declared dead and its reconciliation is ours alone. False: touch nothing of it.

    `proof` is judged again inside, under the row's lock: `stale`, or `unchanged` since the beat at `seen`.
    """
    with transaction.atomic():
        if one(sql.CLAIM_DEAD, {"replica": replica_id, "claimant": claimant}) is None:
            return False
        parameters = {"replica": replica_id, "stale_seconds": conf().replica_stale_seconds, "seen": seen}
        dead = one(sql.DECLARE_DEAD.format(proof=sql.PROOFS[proof]), parameters) is not None
        if not dead:
            # It lives after all: a claim that stayed would have the others leave it alone when it does die.
            transaction.set_rollback(True)
        return dead
