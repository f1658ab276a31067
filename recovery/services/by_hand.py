"""A pass without a replica: `manage.py recover`, at boot or typed while the fleet lives (rules R3, L9)."""

from __future__ import annotations

import time

from django.db import DatabaseError

from controlplane.core.conf import conf
from controlplane.core.identity import ProcessIdentity
from recovery.models import Replica
from recovery.services.reconcile import reconcile
from recovery.services.replicas import displace_silent
from recovery.services.reporting import Report
from recovery.services.situation import Situation, read_situation

BY = "manage.py recover"


def recover(process: ProcessIdentity, *, pinned: str = "", dry_run: bool = False) -> Report:
    """One pass. Nothing that lives is reclaimed, also not under our own pinned id.

    A process that beats nothing cannot tell a dead fleet from one that an outage has just released. So where silent
    replicas stand and nobody is heard, they are watched for two beat intervals first: who lives beats within them.
    """
    lives = ""
    try:
        found = read_situation(None)
        if not dry_run:
            lives = _displace_pinned(pinned, process)
            if _must_watch(found):
                time.sleep(2 * conf().heartbeat_interval_seconds)
    except DatabaseError:
        # Asked again below, which says what could not be read.
        lives = ""
    report = reconcile(claimant=str(process.incarnation), by=BY, dry_run=dry_run)
    if lives:
        report.left_alone.append({"replica": pinned, "why": lives})
    return report


def _displace_pinned(pinned: str, process: ProcessIdentity) -> str:
    """An earlier incarnation under our own pinned id is taken over if it is gone. Otherwise: why it is left alone."""
    if not pinned:
        return ""
    for earlier in Replica.objects.filter(name=pinned, declared_dead_at__isnull=True):
        if not displace_silent(earlier, process):
            return "it lives: it beat while it was watched"
    return ""


def _must_watch(found: Situation) -> bool:
    return not found.accompanied and any(not s.declared for s in found.dead)
