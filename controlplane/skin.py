"""How the admin looks: names, colours, and the sidebar. Read by the skin in `controlplane.admin_base`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse_lazy

Item = dict[str, Any]


def _allowed(permission: str) -> Callable[[HttpRequest], bool]:
    return lambda request: request.user.has_perm(permission)


def _item(title: str, icon: str, model: str) -> Item:
    app, _, name = model.partition(".")
    return {
        "title": title,
        "icon": icon,
        "link": reverse_lazy(f"admin:{app}_{name}_changelist"),
        "permission": _allowed(f"{app}.view_{name}"),
    }


def _group(title: str, *items: Item) -> dict[str, Any]:
    return {"title": title, "separator": False, "collapsible": False, "items": list(items)}


NAVIGATION = [
    _group(
        "",
        {"title": "Fleet", "icon": "sailing", "link": reverse_lazy("admin:index")},
        _item("Tenants", "groups", "admission.tenant"),
    ),
    _group(
        "Work",
        _item("Runs", "play_circle", "admission.run"),
        _item("Batches", "stacks", "admission.batch"),
    ),
    _group(
        "Limits",
        _item("Permits", "confirmation_number", "admission.permit"),
        _item("Counters", "speed", "admission.counter"),
        _item("Physical slots", "grid_view", "admission.physicalreport"),
    ),
    _group(
        "Drivers",
        _item("Replicas", "dns", "recovery.replica"),
        _item("Runners", "precision_manufacturing", "runners.runner"),
        _item("Recovery log", "healing", "recovery.recoveryaction"),
        _item("Recovery debts", "pending_actions", "recovery.recoverydebt"),
        _item("Recovery claims", "gavel", "recovery.recoveryclaim"),
    ),
    _group(
        "Loops",
        _item("Leader", "military_tech", "leadership.lease"),
        _item("Terms", "history_edu", "leadership.term"),
        _item("Loops", "autorenew", "leadership.loopseen"),
        _item("Runs of loops", "schedule", "leadership.fire"),
        _item("Notifications", "outgoing_mail", "leadership.intent"),
    ),
    _group(
        "Access",
        _item("API tokens", "key", "admission.apitoken"),
        _item("Enrolment tokens", "vpn_key", "runners.enrolmenttoken"),
        _item("Secrets", "lock", "runners.secret"),
        _item("Users", "person", "auth.user"),
        _item("Roles", "badge", "auth.group"),
    ),
    _group(
        "Records",
        _item("Audit log", "history", "core.auditentry"),
        _item("Failed tasks", "report", "django_q.failure"),
        _item("Done tasks", "task_alt", "django_q.success"),
        _item("Schedules", "event_repeat", "django_q.schedule"),
        _item("Task queue", "queue", "django_q.ormq"),
    ),
]

# A cold harbour blue over slate; meanings (waiting, running, good, bad) have colours of their own in console.css.
PRIMARY = {
    "50": "oklch(97.1% .013 225)",
    "100": "oklch(94.2% .03 225)",
    "200": "oklch(89% .055 225)",
    "300": "oklch(81% .09 226)",
    "400": "oklch(71.5% .115 228)",
    "500": "oklch(62% .12 230)",
    "600": "oklch(52.5% .112 232)",
    "700": "oklch(45% .095 233)",
    "800": "oklch(38.5% .075 234)",
    "900": "oklch(33% .06 236)",
    "950": "oklch(24% .045 238)",
}

UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Wharfinger",
    "SITE_HEADER": "Wharfinger",
    "SITE_SUBHEADER": "Control plane",
    "SITE_URL": None,
    "SITE_SYMBOL": "anchor",
    "SITE_FAVICONS": [
        {
            "rel": "icon",
            "type": "image/svg+xml",
            "href": lambda _: static("controlplane/mark.svg"),
        },
    ],
    "SHOW_HISTORY": False,
    "SHOW_VIEW_ON_SITE": False,
    "BORDER_RADIUS": "6px",
    "COLORS": {"primary": PRIMARY},
    "STYLES": [lambda _: static("controlplane/console.css")],
    "SCRIPTS": [lambda _: static("controlplane/live.js")],
    "SIDEBAR": {"show_search": False, "show_all_applications": False, "navigation": NAVIGATION},
}
