"""Reading the environment at start: values converted by their field's type, a wrong one refused with its name."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import environ
import platformdirs
from django.core.exceptions import ImproperlyConfigured

from controlplane.core.conf import NAMES

ephemeral: list[str] = []
"""Secrets that this process made for itself because none was given."""

_CONVERSIONS = {"int": int, "float": float, "str": str}

PATIENCE = {
    "connect_timeout": 10,
    "tcp_user_timeout": 30_000,
    "keepalives": 1,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
"""libpq itself waits for ever: a server that vanished without a word would hold a thread, and with it a loop."""


def secret(env: environ.Env, name: str) -> str:
    """A secret from the variable, or from the file that `<name>_FILE` names.

    Without either, a random one for this process alone: fine for a command, useless for a fleet, whose processes would
    not accept each other's sessions and job tokens. Server processes refuse to start on it (check controlplane.E010).
    """
    value: str = env.str(name, default="")
    if not value and (path := os.environ.get(f"{name}_FILE")):
        value = Path(path).read_text().strip()
    if value:
        return value
    ephemeral.append(name)
    return secrets.token_urlsafe(50)


def database(env: environ.Env) -> dict[str, Any]:
    """The PostgreSQL connection that `DATABASE_URL` names."""
    url = env.str("DATABASE_URL", default="postgresql://wharfinger@127.0.0.1:5432/wharfinger")
    settings: dict[str, Any] = environ.Env.db_url_config(url)
    if settings.get("ENGINE") != "django.db.backends.postgresql":
        raise ImproperlyConfigured(
            "DATABASE_URL must name a PostgreSQL database (postgresql://user@host/name): "
            "the rules rest on its row locks."
        )
    # What the address itself says, such as ?connect_timeout=3, wins.
    options = settings["OPTIONS"] = {**PATIENCE, **settings.get("OPTIONS", {})}
    pooled = bool(env.str("DATABASE_DIRECT_URL", default=""))
    # Only named statements are bound by the server and so prepared (controlplane.core.sql); the ORM's are not.
    options["prepare_threshold"] = 5
    if pooled:
        # A transaction pooler gives every transaction another connection: nothing prepared on one is on the next.
        options["prepare_threshold"] = None
        settings["DISABLE_SERVER_SIDE_CURSORS"] = True
    settings["CONN_MAX_AGE"] = 600
    settings["CONN_HEALTH_CHECKS"] = True
    settings["ATOMIC_REQUESTS"] = False
    return settings


def storages(values: dict[str, Any]) -> dict[str, Any]:
    """Django's storages: artifacts in a bucket if one is named, else in a directory of this machine.

    Several machines that serve the web need the bucket, or a directory that all of them see.
    """
    if bucket := values.get("artifact_bucket"):
        options = {"bucket_name": bucket, "default_acl": None, "file_overwrite": False, "querystring_auth": True}
        artifacts = {"BACKEND": "storages.backends.s3.S3Storage", "OPTIONS": options}
    else:
        place = values.get("artifact_dir") or str(platformdirs.user_data_path("wharfinger") / "artifacts")
        options = {"location": place, "file_permissions_mode": 0o600, "directory_permissions_mode": 0o700}
        artifacts = {"BACKEND": "runners.storage.DurableFileStorage", "OPTIONS": options}
    return {
        "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
        "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
        "artifacts": artifacts,
    }


def control_plane_values(env: environ.Env) -> dict[str, Any]:
    """The `CONTROLPLANE_*` variables that are set, converted."""
    values = {}
    for variable, spec in NAMES.items():
        text = env.str(variable, default="")
        if text == "":
            continue
        kind = str(spec.type)
        try:
            values[spec.name] = _CONVERSIONS[kind](text)
        except ValueError as error:
            raise ImproperlyConfigured(f"{variable}={text!r} is not of type {kind}; correct or unset it.") from error
    return values
