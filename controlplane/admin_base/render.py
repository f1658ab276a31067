"""What cells and panels are drawn with: badges, times, bars, links. Escaped HTML out, no skin, no queries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from controlplane.admin_base.drivers import driver_page

EMPTY = mark_safe('<span class="wf-empty" aria-label="none">&ndash;</span>')

WARN_PERCENT = 80
FULL_PERCENT = 100

STATE_TONES = {
    "queued": "wait",
    "admitted": "ready",
    "running": "run",
    "succeeded": "good",
    "failed": "bad",
    "cancelled": "mute",
    "timed_out": "warn",
    "interrupted": "warn",
}
DESTRUCTIVE = ("cancel", "requeue", "force_release", "delete", "revoke", "revoke_token", "revoke_enrolment_token")
HEALTH_TONES = {"live": "good", "draining": "ready", "late": "warn", "silent": "bad", "dead": "mute"}


def badge(text: object, tone: str = "mute", title: str = "") -> SafeString:
    """A short word in the colour of its meaning; the word alone carries it, the colour only helps."""
    return format_html('<span class="wf-badge wf-tone-{}" title="{}">{}</span>', tone, title, text)


def state_badge(state: str) -> SafeString:
    """The state of a run or the ending of an attempt."""
    return badge(state.replace("_", " "), STATE_TONES.get(state, "mute")) if state else EMPTY


def health_badge(health: str) -> SafeString:
    """Whether a driver is heard."""
    return badge(health, HEALTH_TONES.get(health, "mute"))


def verb_badge(verb: str) -> SafeString:
    """A verb of the audit log; what takes something away stands out."""
    return badge(verb.replace("_", " "), "warn" if verb in DESTRUCTIVE else "run")


def moment(at: datetime | None) -> SafeString:
    """A point in time, to the second, in UTC."""
    if at is None:
        return EMPTY
    return format_html('<time class="wf-num" datetime="{}">{}</time>', at.isoformat(), f"{at:%Y-%m-%d %H:%M:%S}")


def span(seconds: float) -> str:
    """A length of time in at most two units."""
    total = int(max(seconds, 0))
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    if total < 86_400:
        return f"{total // 3600} h {total % 3600 // 60:02d} min"
    return f"{total // 86_400} d {total % 86_400 // 3600} h"


def length(start: datetime | None, stop: datetime | None) -> SafeString | str:
    """From one moment to another; below ten seconds to the tenth."""
    if start is None or stop is None:
        return EMPTY
    seconds = (stop - start).total_seconds()
    return f"{max(seconds, 0):.1f} s" if seconds < 10 else span(seconds)


def age(
    seconds: float | None, at: datetime | None, *, warn: float | None = None, bad: float | None = None
) -> SafeString:
    """How long ago; the browser counts on, and colours it where it passes a threshold."""
    if seconds is None or at is None:
        return EMPTY
    tone = "bad" if bad is not None and seconds > bad else "warn" if warn is not None and seconds > warn else ""
    return format_html(
        '<time class="wf-num{}" datetime="{}" title="{}" data-age="{}">{}</time>',
        f" wf-age-{tone}" if tone else "",
        at.isoformat(),
        f"{at:%Y-%m-%d %H:%M:%S} UTC",
        f"{seconds:.1f}",
        span(seconds),
    )


def countdown(seconds: float, *, warn_below: float) -> SafeString:
    """Time left by the database's clock; the browser counts down, and turns it amber, then red at zero."""
    tone = "bad" if seconds <= 0 else "warn" if seconds < warn_below else "mute"
    return format_html(
        '<span class="wf-count wf-num wf-tone-{}" data-left="{}" data-warn="{}">{}</span>',
        tone,
        f"{seconds:.1f}",
        f"{warn_below:.0f}",
        span(seconds) if seconds > 0 else "lapsed",
    )


def pressure_tone(used: int, limit: int | None) -> str:
    """The colour of a utilisation bar."""
    if limit is None:
        return "open"
    if used > limit:
        return "over"
    percent = 100 * used / limit if limit else 100
    return "full" if percent >= FULL_PERCENT else "warn" if percent >= WARN_PERCENT else "good"


def bar(used: int, limit: int | None, of: str = "quota") -> SafeString:
    """Used of limit. Above the limit the bar is drawn to `used`, with a mark at the limit and the excess hatched.

    Full slots are a machine well used, so they stay calm; a full quota makes its tenant wait, so it is coloured.
    """
    tone = "plain" if of == "slots" else pressure_tone(used, limit)
    if limit is None:
        return format_html(
            '<span class="wf-use wf-use-open"><i class="wf-bar-none" aria-hidden="true"></i>'
            '<span class="wf-num">{}</span><small>no limit</small></span>',
            used,
        )
    whole = max(used, limit, 1)
    inside, mark = 100 * min(used, limit) / whole, 100 * limit / whole
    over = format_html(
        '<rect class="wf-bar-over" x="{0}" y="0" width="{1}" height="8"/>'
        '<rect class="wf-bar-mark" x="{0}" y="0" width="0.8" height="8"/>',
        f"{mark:.2f}",
        f"{100 - mark:.2f}",
    )
    return format_html(
        '<span class="wf-use wf-use-{}"><svg class="wf-bar" viewBox="0 0 100 8" preserveAspectRatio="none" '
        'aria-hidden="true"><rect class="wf-bar-in" x="0" y="0" width="{}" height="8"/>{}</svg>'
        '<span class="wf-num">{} / {}</span>{}</span>',
        tone,
        f"{inside:.2f}",
        over if used > limit else "",
        used,
        limit,
        format_html('<span class="wf-over">{} over</span>', used - limit) if used > limit else "",
    )


def link(view: str, pk: object, text: object) -> SafeString:
    """A link to an object's page."""
    return format_html('<a class="wf-link" href="{}">{}</a>', reverse(view, args=[pk]), text)


def list_link(view: str, text: object, **query: object) -> SafeString:
    """A link to a filtered list."""
    return format_html('<a class="wf-link" href="{}">{}</a>', reverse(view, query=query), text)


def driver_link(kind: str, pk: int | None, name: str) -> SafeString:
    """The driver's name, leading to its page."""
    if not name:
        return EMPTY
    address = driver_page(kind, pk)
    return format_html('<a class="wf-link" href="{}">{}</a>', address, name) if address else format_html("{}", name)


def json_block(value: Any) -> SafeString:
    """A value as indented JSON."""
    if value in (None, {}, []):
        return EMPTY
    return format_html('<pre class="wf-code" tabindex="0">{}</pre>', json.dumps(value, indent=2, ensure_ascii=False))


def labels(values: Mapping[str, object]) -> SafeString:
    """Labels as small tags."""
    if not values:
        return EMPTY
    parts = [format_html('<span class="wf-tag">{}={}</span>', name, value) for name, value in sorted(values.items())]
    return SafeString(" ".join(parts))


def code(text: object) -> SafeString:
    """An identifier, in the fixed-width face."""
    return format_html('<code class="wf-id">{}</code>', text)
