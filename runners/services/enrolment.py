"""How machines become runners: an enrolment token, used a few times within its time, buys a runner token each (Q2)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from admission.models import Tenant
from controlplane.core import tokens
from controlplane.core.audit import Actor, record
from controlplane.core.errors import DomainError, InvalidInput, NotFound
from controlplane.core.sql import one
from runners import sql
from runners.models import EnrolmentToken, Runner

TRUST_PREFIX = "trust."
MAX_LABELS = 50
MAX_SLOTS = 1000
MAX_LIFETIME = timedelta(days=30)
EXECUTORS = ("docker", "process")
LABEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}")
LABEL_VALUE_LENGTH = 200


class EnrolmentRefused(DomainError):
    """The enrolment token is unknown, used up, revoked or expired: one answer for all of these."""

    code = "bad_enrolment_token"


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine says of itself when it enrols."""

    name: str
    slots: int = 1
    executors: tuple[str, ...] = ("docker",)
    version: str = ""
    host: str = ""


def issue_enrolment_token(
    *,
    actor: Actor,
    name: str = "",
    uses: int = 1,
    lifetime: timedelta = timedelta(hours=1),
    tenant: Tenant | None = None,
    trust_labels: Mapping[str, str] | None = None,
    reason: str = "",
) -> tuple[EnrolmentToken, str]:
    """A new enrolment token; the secret is returned here and nowhere else. Without a tenant its runners are shared."""
    if not 1 <= uses <= MAX_SLOTS:
        raise InvalidInput(f"An enrolment token is for 1 to {MAX_SLOTS} runners, not {uses}.")
    if not timedelta(0) < lifetime <= MAX_LIFETIME:
        raise InvalidInput(f"An enrolment token lives above 0 and at most {MAX_LIFETIME.days} days.")
    labels = check_labels(trust_labels or {})
    if wrong := [label for label in labels if not label.startswith(TRUST_PREFIX)]:
        raise InvalidInput(f"The trust label {wrong[0]!r} must begin with {TRUST_PREFIX!r}, which no runner may give.")
    secret = tokens.new_token(tokens.ENROLMENT)
    with transaction.atomic():
        token = EnrolmentToken.objects.create(
            tenant=tenant,
            name=name,
            shown=tokens.shown_part(secret),
            hash=tokens.token_hash(secret),
            trust_labels=labels,
            uses_left=uses,
            expires_at=timezone.now() + lifetime,
            created_by=actor.name,
        )
        after = {"uses": uses, "tenant": tenant.slug if tenant else None, "trust_labels": labels}
        record("issue_enrolment_token", "enrolment token", token.shown, actor=actor, reason=reason, after=after)
    return token, secret


def revoke_enrolment_token(token: EnrolmentToken, *, actor: Actor, reason: str = "") -> bool:
    """No further runner enrols with it; those that did stay. False: it was used up or expired already."""
    with transaction.atomic():
        changed = EnrolmentToken.objects.filter(pk=token.pk, uses_left__gt=0, expires_at__gt=Now()).update(uses_left=0)
        if changed:
            record("revoke_enrolment_token", "enrolment token", token.shown, actor=actor, reason=reason)
    return bool(changed)


def enrol(secret: str, machine: Machine, labels: Mapping[str, str] | None = None) -> tuple[Runner, str]:
    """Make a runner of this machine; its token is returned here and nowhere else.

    A reply that is lost costs one use of the enrolment token and leaves a runner that never calls.

    Raises:
        EnrolmentRefused: the token buys nothing.
        InvalidInput: what the machine says of itself is wrong.
    """
    own = check_labels(labels or {})
    if wrong := [label for label in own if label.startswith(TRUST_PREFIX)]:
        raise InvalidInput(f"The label {wrong[0]!r} is given by the server only; choose another name.")
    _check_machine(machine)
    runner_secret = tokens.new_token(tokens.RUNNER)
    with transaction.atomic():
        bought = one(sql.USE_ENROLMENT, {"hash": tokens.token_hash(secret)})
        if bought is None:
            raise EnrolmentRefused(
                "The enrolment token is unknown, used up or expired.", hint="Ask an operator for a new one."
            )
        runner = Runner.objects.create(
            name=machine.name,
            tenant_id=bought["tenant_id"],
            shown=tokens.shown_part(runner_secret),
            hash=tokens.token_hash(runner_secret),
            labels=own,
            trust_labels=_json(bought["trust_labels"]),
            executors=list(machine.executors),
            slots=machine.slots,
            version=machine.version,
            host=machine.host,
        )
        actor = Actor(f"enrolment token {bought['shown']}…")
        after = {"name": machine.name, "slots": machine.slots, "executors": list(machine.executors)}
        record("enrol", "runner", runner.pk, actor=actor, after=after)
    return runner, runner_secret


def check_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Few, short, and of one form; anything else is refused by name."""
    if len(labels) > MAX_LABELS:
        raise InvalidInput(f"{len(labels)} labels; at most {MAX_LABELS}.")
    for name, value in labels.items():
        if not LABEL_NAME.fullmatch(name):
            raise InvalidInput(f"The label name {name[:100]!r} must be letters, digits and . _ / -, at most 100.")
        if not value or len(value) > LABEL_VALUE_LENGTH or not value.isprintable():
            raise InvalidInput(f"The value of label {name!r} must be 1 to {LABEL_VALUE_LENGTH} printable characters.")
    return dict(labels)


def _check_machine(machine: Machine) -> None:
    _check_text("name", machine.name, 1, 200)
    _check_text("version", machine.version, 0, 40)
    _check_text("host", machine.host, 0, 200)
    if not 1 <= machine.slots <= MAX_SLOTS:
        raise InvalidInput(f"A runner has 1 to {MAX_SLOTS} slots, not {machine.slots}.")
    if not machine.executors or set(machine.executors) - set(EXECUTORS):
        raise InvalidInput(f"Executors are some of {', '.join(EXECUTORS)}, not {list(machine.executors)}.")


def _check_text(what: str, text: str, least: int, most: int) -> None:
    if not least <= len(text) <= most or not (text.isprintable() or not text):
        raise InvalidInput(f"A runner's {what} has {least} to {most} printable characters.")


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def open_enrolment_tokens() -> QuerySet[EnrolmentToken]:
    """Those that still buy something."""
    return EnrolmentToken.objects.select_related("tenant").filter(uses_left__gt=0, expires_at__gt=Now())


def get_enrolment_token(token: int) -> EnrolmentToken:
    """Raises NotFound."""
    found = EnrolmentToken.objects.filter(pk=token).first()
    if found is None:
        raise NotFound(f"There is no enrolment token {token}.")
    return found
