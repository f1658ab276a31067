"""The drawing functions of `admin_base.render`, for templates."""

from __future__ import annotations

from django import template

from controlplane.admin_base import render

register = template.Library()

for drawn in (render.bar, render.driver_link, render.health_badge, render.verb_badge):
    register.simple_tag(drawn)
register.filter("span", render.span)


@register.filter
def capped(count: int, cap: int) -> str:
    """An exact count, or "cap+"."""
    return f"{cap:,}+" if count > cap else f"{count:,}"
