"""Secrets of tenants: set, listed by name, deleted, and given to whoever holds a run that names them (rule Q13).

Nothing here returns a value but `give`, and that only for a hold. Values are in no message and in no audit entry.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from admission.drivers import Driver
from admission.models import Tenant
from admission.references import Named
from admission.services.runs import Hold, Settlement, settle_runs
from controlplane.core.audit import Actor, record
from controlplane.core.errors import InvalidInput, NotFound
from controlplane.core.sql import one, rows
from runners import kept_sql as sql
from runners.models import Secret
from runners.services.sealing import Unreadable, seal, unseal

log = logging.getLogger(__name__)

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
RESERVED = ("WHARFINGER_",)
LEAST_BYTES = 8
MOST_BYTES = 32 << 10
MOST_SECRETS = 1000
FIELD = "secrets"
REGISTRY_FIELD = "registry_secret"


def names_any(spec: Mapping[str, Any]) -> bool:
    """Whether a stored specification names a secret at all."""
    return bool(spec.get(FIELD) or spec.get(REGISTRY_FIELD))


@dataclass(frozen=True, slots=True)
class Given:
    """What holds are given. `refused`: they cannot be, and were ended with the reason."""

    values: dict[Hold, dict[str, str]] = field(default_factory=dict, repr=False)
    refused: frozenset[Hold] = frozenset()


def set_secret(tenant: Tenant, name: str, value: str, *, actor: Actor, reason: str = "") -> bool:
    """Set it; True when it is new. Runs that were started before keep what they were given.

    Raises:
        InvalidInput: about the name or the value, without the value.
    """
    _check_name(name)
    _check_value(value)
    with transaction.atomic():
        if Secret.objects.filter(tenant=tenant).exclude(name=name)[:MOST_SECRETS].count() >= MOST_SECRETS:
            raise InvalidInput(f"Tenant {tenant.slug!r} has {MOST_SECRETS} secrets; delete some first.")
        sealed = seal(tenant.pk, name, value)
        parameters = {"tenant_id": tenant.pk, "name": name, "value": sealed, "updated_by": actor.name}
        row = one(sql.STORE_SEALED, parameters)
        created = bool(row and row["created"])
        record("set_secret", "secret", f"{tenant.slug}/{name}", actor=actor, reason=reason, after={"new": created})
    return created


def delete_secret(tenant: Tenant, name: str, *, actor: Actor, reason: str = "") -> None:
    """Delete it. Queued runs that name it are set aside when their turn comes.

    Raises:
        NotFound: this tenant has no secret of that name.
    """
    with transaction.atomic():
        deleted, _ = Secret.objects.filter(tenant=tenant, name=name).delete()
        if not deleted:
            raise NotFound(f"Tenant {tenant.slug!r} has no secret of that name.")
        record("delete_secret", "secret", f"{tenant.slug}/{name}", actor=actor, reason=reason)


def list_secrets(tenant: Tenant | None = None) -> QuerySet[Secret]:
    """Names and times, never values: they are not even read."""
    found = Secret.objects.select_related("tenant").defer("value", "previous")
    return found if tenant is None else found.filter(tenant=tenant)


def reseal_secrets(*, actor: Actor, reason: str = "") -> int:
    """Encrypt everything with the first key, so that an old one can be taken away. Returns how many.

    Raises:
        Unreadable: one opens with no key. Nothing was changed.
    """
    with transaction.atomic():
        found = list(Secret.objects.select_for_update().order_by("pk"))
        for secret in found:
            secret.value = _resealed(secret, secret.value)
            secret.previous = None if secret.previous is None else _resealed(secret, secret.previous)
            secret.save(update_fields=["value", "previous"])
        record("reseal_secrets", "secret", "all", actor=actor, reason=reason, after={"secrets": len(found)})
    return len(found)


def _resealed(secret: Secret, sealed: bytes | memoryview) -> bytes:
    return seal(secret.tenant_id, secret.name, unseal(secret.tenant_id, secret.name, bytes(sealed)))


def unknown_names(items: Sequence[Named]) -> list[str]:
    """For each (tenant, specification): which secret it names that is not there, as a sentence; '' for none."""
    return _unknown([(tenant_id, spec.secrets) for tenant_id, spec in items])


def unknown_registry_names(items: Sequence[Named]) -> list[str]:
    """The same for the secret that its registry is asked with."""
    return _unknown([(tenant_id, [spec.registry_secret] if spec.registry_secret else []) for tenant_id, spec in items])


def _unknown(items: Sequence[tuple[int, Sequence[str]]]) -> list[str]:
    wanted = {(tenant_id, name) for tenant_id, names in items for name in names}
    if not wanted:
        return [""] * len(items)
    asked = {"tenants": [tenant_id for tenant_id, _ in wanted], "names": [name for _, name in wanted]}
    known = {(row["tenant_id"], row["name"]) for row in rows(sql.READ_SEALED_NAMES, asked)}
    return [_sentence([n for n in names if (tenant_id, n) not in known]) for tenant_id, names in items]


def _sentence(missing: Sequence[str]) -> str:
    if not missing:
        return ""
    return f"there is no secret {', '.join(map(repr, missing))}; set it first (wharfinger secret set {missing[0]})"


def give(driver: Driver, holds: Sequence[Hold]) -> Given:
    """The secrets that these holds name, each by its name, for the driver that holds them now, at this epoch.

    The same again for a repeated claim and for a run that was adopted; nothing for a hold that has moved on. A hold
    that names what is not there any more, or what no key opens, is ended here as failed with the reason.
    """
    if not holds:
        return Given()
    asked = {"runs": [run for run, _ in holds], "epochs": [epoch for _, epoch in holds], **driver.identity()}
    values: dict[Hold, dict[str, str]] = {}
    broken: dict[Hold, str] = {}
    for row in rows(sql.READ_HELD_SECRETS, asked):
        hold = (row["run"], row["epoch"])
        if row["value"] is None:
            broken[hold] = f"there is no secret {row['name']!r} any more"
            continue
        try:
            values.setdefault(hold, {})[row["name"]] = unseal(row["tenant_id"], row["name"], bytes(row["value"]))
        except Unreadable as error:
            broken[hold] = str(error)
    if broken:
        _end(driver, broken)
    return Given({hold: given for hold, given in values.items() if hold not in broken}, frozenset(broken))


def _end(driver: Driver, broken: dict[Hold, str]) -> None:
    for hold, why in broken.items():
        log.error("secrets.not_given", extra={"run": hold[0], "epoch": hold[1], "why": why})
    settle_runs(driver, [Settlement(*hold, "failed", "secret_missing", why) for hold, why in broken.items()])


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise InvalidInput(
            f"A secret's name is an environment variable's: letters, digits and _, not {name[:100]!r}.",
            errors=[{"field": "name", "error": "letters, digits and _, at most 200, not beginning with a digit"}],
        )
    if name.startswith(RESERVED):
        raise InvalidInput(f"Names that begin with {RESERVED[0]} are the product's own.")


def _check_value(value: str) -> None:
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidInput("A secret's value is text in UTF-8.") from None
    if "\x00" in value:
        raise InvalidInput("A secret's value must not contain the character U+0000: no environment can carry it.")
    if size > MOST_BYTES:
        raise InvalidInput(f"A secret's value has at most {MOST_BYTES} bytes, not {size}.")
    if len(value.strip().encode()) < LEAST_BYTES:
        raise InvalidInput(
            f"A secret's value has at least {LEAST_BYTES} bytes beside white space.",
            hint="A shorter one cannot be masked in output: it would mask ordinary text, and tell by that what it is.",
        )
