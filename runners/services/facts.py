"""Runners as `why` sees them."""

from __future__ import annotations

import json
from typing import Any

from admission.driver_facts import DriverFacts
from admission.states import DriverKind
from controlplane.core.conf import conf
from controlplane.core.sql import rows
from runners import sql


def read_runner_facts(limit: int) -> list[DriverFacts]:
    """Those heard last. Live: not revoked, and heard within a lease."""
    parameters = {"limit": limit, "lease_seconds": conf().runner_lease_seconds}
    return [
        DriverFacts(
            kind=DriverKind.RUNNER,
            id=row["id"],
            name=row["name"],
            slots=row["slots"],
            held=row["held"],
            live=row["live"],
            gone=row["gone"],
            draining=row["draining"],
            alive_seconds_ago=row["heard"],
            # As at a claim: the server's labels come last.
            labels={**_json(row["labels"]), **_json(row["trust_labels"])},
            backends=tuple(_json(row["executors"])),
            tenant_id=row["tenant_id"],
        )
        for row in rows(sql.READ_FACTS, parameters)
    ]


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value
