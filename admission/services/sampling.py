"""Numbers for the charts, once a minute."""

from __future__ import annotations

from admission.sql import sweeping as sql
from controlplane.core.loops import Progress
from controlplane.core.sql import rows

CAP = 1_000_000


def sample() -> Progress:
    """What is queued, held and used now, and what ended in the last whole minute."""
    return Progress({"samples": len(rows(sql.SAMPLE, {"cap": CAP}))})
