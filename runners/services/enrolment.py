"""How machines become runners: an enrolment token, used a few times within its time, buys a runner token each (Q2)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from admission.models import Tenant
from controlplane.core import tokens
from controlplane.core.audit import Actor, record
from controlplane.core.clock import database_now
from controlplane.core.errors import DomainError, InvalidInput, NotFound
from controlplane.core.sql import Row, one
from runners import sql
from runners.models import EnrolmentToken, Runner
from runners.services.fleet import take_all

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
    one_job: bool = False
    """Takes one run, then drains."""


def lifetime_of(hours: float) -> timedelta:
    """As a person gives it. Raises InvalidInput for what is no length of time, or too long for one."""
    if not 0 < hours <= MAX_LIFETIME / timedelta(hours=1):
        raise InvalidInput(f"An enrolment token lives above 0 and at most {MAX_LIFETIME.days} days.")
    return timedelta(hours=hours)


def issue_enrolment_token(  # noqa: PLR0913 - each is a fact of the token, by its name
    *,
    actor: Actor,
    name: str = "",
    uses: int = 1,
    lifetime: timedelta = timedelta(hours=1),
    tenant: Tenant | None = None,
    trust_labels: Mapping[str, str] | None = None,
    runner: Runner | None = None,
    one_job: bool = False,
    reason: str = "",
) -> tuple[EnrolmentToken, str]:
    """A new enrolment token; the secret is returned here and nowhere else. Without a tenant its runners are shared.

    With `runner` it brings back that runner's machine: its tenant and its trust labels stay what they are.
    """
    if runner is not None:
        uses, tenant, trust_labels = 1, runner.tenant, runner.trust_labels
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
            expires_at=database_now() + lifetime,
            runner=runner,
            one_job=one_job,
            created_by=actor.name,
        )
        after = {
            "uses": uses,
            "tenant": tenant.slug if tenant else None,
            "trust_labels": labels,
            "runner": runner.pk if runner else None,
        }
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
        values = _values(machine, own, bought, runner_secret)
        actor = Actor(f"enrolment token {bought['shown']}…")
        after = {"name": machine.name, "slots": machine.slots, "executors": list(machine.executors)}
        if bought["runner_id"] is None:
            runner = Runner.objects.create(tenant_id=bought["tenant_id"], **values)
            record("enrol", "runner", runner.pk, actor=actor, after=after)
        else:
            runner = _come_back(bought["runner_id"], values, actor, after)
    return runner, runner_secret


def _values(machine: Machine, labels: Mapping[str, str], bought: Row, secret: str) -> dict[str, Any]:
    one_job = machine.one_job or bought["one_job"]
    return {
        "name": machine.name,
        "shown": tokens.shown_part(secret),
        "hash": tokens.token_hash(secret),
        "labels": dict(labels),
        "trust_labels": _json(bought["trust_labels"]),
        "executors": list(machine.executors),
        "slots": 1 if one_job else machine.slots,
        "version": machine.version,
        "host": machine.host,
        "one_job": one_job,
    }


def _come_back(runner: int, values: dict[str, Any], actor: Actor, after: dict[str, Any]) -> Runner:
    """The same runner under a new token. What it held under the old one is taken from it, as at a revocation: whoever
    still has that token may be executing it."""
    row = one(sql.LOCK_RUNNER_ALONE, {"runner": runner})
    if row is None:
        raise EnrolmentRefused("The runner that this token brings back is gone.", hint="Ask for a new token.")
    fresh = {
        "old_hash": None,
        "old_until": None,
        "revoked_at": None,
        "draining_at": None,
        "drain_own": False,
        "spent_at": None,
    }
    Runner.objects.filter(pk=runner).update(**values, **fresh)
    taken = take_all(runner, row["name"], f"{actor.name}: enrolled anew")
    record("enrol_again", "runner", runner, actor=actor, after={**after, "runs_taken": taken})
    return Runner.objects.get(pk=runner)


def parse_labels(given: Iterable[str]) -> dict[str, str]:
    """Each `name=value`, as people type them; empty ones are left out. Raises InvalidInput."""
    labels: dict[str, str] = {}
    for text in filter(None, (part.strip() for part in given)):
        name, separator, value = text.partition("=")
        if not separator:
            raise InvalidInput(f"The label {text[:100]!r} is not of the form name=value.")
        labels[name.strip()] = value.strip()
    return labels


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
