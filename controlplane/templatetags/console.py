"""The drawing functions of `admin_base.render`, for templates."""

from __future__ import annotations

from typing import Any

from django import template

from admission.models import Run
from controlplane.admin_base import render
from controlplane.fleet.kept import kept_context

register = template.Library()

for drawn in (render.bar, render.driver_link, render.health_badge, render.verb_badge):
    register.simple_tag(drawn)
register.filter("span", render.span)


@register.filter
def capped(count: int, cap: int) -> str:
    """An exact count, or "cap+"."""
    return f"{cap:,}+" if count > cap else f"{count:,}"


@register.inclusion_tag("console/kept.html")
def kept_files(run: Run) -> dict[str, Any]:
    """The panel of what a run kept; the ledger below knows nothing of it."""
    return kept_context(run)
