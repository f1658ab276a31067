"""What must be so before this process serves, beyond the relations of settings: the physical limit (rule P3)."""

from __future__ import annotations

import os
from typing import Any

from django.conf import settings
from django.core import checks

from admission.physical.entitlement import FLEET_SECRET, TIER, Entitlement, EntitlementRefused
from admission.services.physical import NO_SERVER, read_entitlement

PAGE = "See docs/physical.md."


@checks.register("controlplane")
def check_physical(**_: Any) -> list[checks.CheckMessage]:
    """Refuse an environment by which nothing could be executed; tell of a tier that means nothing."""
    found = read_entitlement()
    if isinstance(found, EntitlementRefused):
        return [checks.Error(problem, hint=PAGE, id="controlplane.E060") for problem in found.problems]
    if isinstance(found, Entitlement) and not settings.REDIS_URL:
        return [checks.Error(NO_SERVER, hint=PAGE, id="controlplane.E061")]
    if os.environ.get(TIER) and FLEET_SECRET not in os.environ:
        text = f"{TIER} is set without {FLEET_SECRET}: it means nothing on a self-hosted instance"
        hint = f"Set CONTROLPLANE_RUN_LIMIT for a limit here, or {FLEET_SECRET} if this is a hosted instance. {PAGE}"
        return [checks.Warning(text, hint=hint, id="controlplane.W060")]
    return []
