"""Runs that should have moved and did not: their operators are told once for each, over the whole fleet (rule L8)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from django.core.mail import send_mail

from admission.services.readings import read_stuck
from controlplane.core.conf import conf
from controlplane.core.loops import Progress
from leadership.services.intents import declare

log = logging.getLogger(__name__)

KIND = "stuck_run"

WHYS = {
    "cancel_unanswered": "its driver was asked to stop it and has not confirmed that it did",
    "never_admitted": "it waits in the queue and was never admitted",
}


def notify_stuck() -> Progress:
    """Decide, under the leader's term, whom to tell: a run is told of once for each reason, however long it stays."""
    found = {f"{row['id']}.{row['why']}": row for row in read_stuck()}
    return Progress({"stuck": len(found), "new": len(declare(KIND, found))})


def tell(_: str, payload: Mapping[str, Any]) -> None:
    """The effect: a line in the log, and a mail where recipients are set."""
    why = WHYS.get(payload["why"], payload["why"])
    log.warning("run.stuck", extra={"run": payload["id"], "tenant": payload["tenant"], "why": payload["why"]})
    recipients = [address.strip() for address in conf().notify_email.split(",") if address.strip()]
    if not recipients:
        return
    driver = f"\nIts driver: {payload['driver_name']}." if payload["driver_name"] else ""
    send_mail(
        subject=f"Run {payload['id']} of {payload['tenant']} is stuck",
        message=f"Run {payload['id']} is stuck: {why}, for {payload['seconds']:.0f} s.{driver}\n",
        from_email=None,
        recipient_list=recipients,
    )
