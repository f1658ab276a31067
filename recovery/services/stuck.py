"""Runs that should have moved and did not: their operators are told once for each, over the whole fleet (rule L8)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import requests
from django.core.mail import send_mail

from admission.services.readings import read_stuck
from controlplane.core.conf import conf
from controlplane.core.loops import Progress
from controlplane.core.sql import Row, rows
from leadership.services.intents import declare
from recovery import sql

log = logging.getLogger(__name__)

KIND = "stuck_run"
WEBHOOK = "stuck_run_webhook"
"""An intent of its own: while the receiver is away, only the POST is repeated, not the mail."""

WEBHOOK_TIMEOUT_SECONDS = 5.0
MOST_DEBTS = 500

WHYS = {
    "cancel_unanswered": "its driver was asked to stop it and has not confirmed that it did",
    "never_admitted": "it waits in the queue and was never admitted",
    "recovery_debt": "its replica died, and what became of it cannot be decided (see recovery debts)",
}


def notify_stuck() -> Progress:
    """Decide, under the leader's term, whom to tell: a run is told of once for each reason, however long it stays."""
    found = {f"{row['id']}.{row['why']}": row for row in [*read_stuck(), *_escalated()]}
    new = declare(KIND, found)
    if conf().notify_webhook_url:
        declare(WEBHOOK, found)
    return Progress({"stuck": len(found), "new": len(new)})


def _escalated() -> list[Row]:
    return rows(sql.READ_ESCALATED, {"limit": MOST_DEBTS})


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


def post(key: str, payload: Mapping[str, Any]) -> None:
    """The effect by webhook, at least once: the receiver tells a repetition by its key.

    Raises:
        ValueError: this process has no address to send to, unlike the one that decided.
        requests.RequestException: no answer in time, or one that is not of the 200s.
    """
    address = conf().notify_webhook_url
    if not address:
        raise ValueError("CONTROLPLANE_NOTIFY_WEBHOOK_URL is not set here; set it on every replica.")
    body = {
        "event": "run.stuck",
        "key": key,
        "run": payload["id"],
        "tenant": payload["tenant"],
        "why": payload["why"],
        "text": WHYS.get(payload["why"], payload["why"]),
        "seconds": payload["seconds"],
        "driver": payload["driver_name"],
    }
    # A redirect would turn the POST into a GET that tells nothing; it counts as a failure.
    answer = requests.post(
        address,
        json=body,
        headers={"Idempotency-Key": key},
        timeout=WEBHOOK_TIMEOUT_SECONDS,
        allow_redirects=False,
    )
    if not requests.codes.ok <= answer.status_code < requests.codes.multiple_choices:
        raise requests.HTTPError(f"The webhook answered {answer.status_code}.", response=answer)
