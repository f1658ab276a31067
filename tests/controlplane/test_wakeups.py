"""The connection that listens is made as every other: by the same certificates, with the same patience."""

from __future__ import annotations

import copy
from typing import Any

import psycopg
import pytest
from django.conf import settings

from controlplane.core.wakeups import listening_address


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    found = copy.deepcopy(settings.DATABASES)
    monkeypatch.setattr(settings, "DATABASES", found)
    monkeypatch.delenv("DATABASE_DIRECT_URL", raising=False)
    given: dict[str, Any] = found["default"]["OPTIONS"]
    return given


@pytest.mark.rule("G9")
def test_it_keeps_to_the_options_of_the_database_address(options: dict[str, Any]) -> None:
    options |= {"sslmode": "verify-full", "sslrootcert": "/etc/ca.pem", "connect_timeout": "3"}
    said = psycopg.conninfo.conninfo_to_dict(listening_address())
    assert (said["sslmode"], said["sslrootcert"], said["connect_timeout"]) == ("verify-full", "/etc/ca.pem", "3")
    assert int(str(said["tcp_user_timeout"])) > 0, "a server that vanished without a word is noticed"


@pytest.mark.rule("G9")
def test_a_direct_address_says_what_it_says_and_is_not_waited_for_longer(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_DIRECT_URL", "postgresql://me@direct:6000/db?sslmode=require&connect_timeout=2")
    said = psycopg.conninfo.conninfo_to_dict(listening_address())
    assert (said["host"], said["sslmode"], said["connect_timeout"]) == ("direct", "require", "2")
    assert int(str(said["tcp_user_timeout"])) > 0
