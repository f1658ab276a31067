"""What recovery keeps how long. Open debts are kept for ever."""

from __future__ import annotations

from controlplane.core.conf import conf
from controlplane.core.loops import Progress
from controlplane.core.sql import execute
from recovery import sql

BATCH = 2000
DAY_SECONDS = 86_400


def delete_expired() -> Progress:
    """One bounded batch of each; any process may do it at any moment."""
    given = {"age": conf().recovery_log_retention_days * DAY_SECONDS, "limit": BATCH}
    actions, debts = execute(sql.DELETE_ACTIONS, given), execute(sql.DELETE_DEBTS, given)
    return Progress({"actions": actions, "debts": debts}, more=BATCH in (actions, debts))
