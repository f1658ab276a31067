"""Physical slots: what Redis counts beside the containers that exist, and the verb that asks for a pass."""

# ruff: noqa: D102 - a column says what it is by its description

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.cache import add_never_cache_headers
from django.utils.safestring import SafeString

from admission.models import PhysicalReport
from admission.physical.entitlement import TIERS, Entitlement, Unrestricted
from admission.physical.protocol import HOLD_SECONDS
from admission.physical.results import Holder, Waiter
from admission.services.physical import SILENT_SECONDS, Process, SlotsView, read_slots, reconcile_now
from controlplane.admin_base import ReadOnlyAdmin, render
from controlplane.admin_base.verbs import Order, Outcome, Preview, Verb

REFRESH_SECONDS = 2
SHOWN_WAITERS = 50
STATE_TONES = {"reserved": "ready", "running": "run", "recovering": "warn"}


def _preview(_: Sequence[Any], __: Mapping[str, Any]) -> Preview:
    view = read_slots()
    if view.error:
        return Preview([f"The slots cannot be read: {view.error}"], warning=True)
    if not view.processes:
        return Preview(["No process of this instance has reported a pass yet."], warning=True)
    recovering = view.snapshot.counts.recovering if view.snapshot else 0
    return Preview([f"{len(view.processes)} processes make their pass at once; {recovering} slots are recovering."])


def _reconcile(order: Order) -> Outcome:
    number = reconcile_now(actor=order.actor, reason=order.reason)
    return Outcome(f"Asked: request {number}. Each process shows below when it has answered.", 1)


RECONCILE = Verb(
    name="reconcile-now",
    label="Reconcile now",
    permission="admission.reconcile_physical",
    perform=_reconcile,
    explain="Every process of the instance looks through its containers and slots now instead of at its next turn: "
    "expired slots are recovered, a newer generation is installed, containers without a slot are removed.",
    preview=_preview,
    on_list=True,
    many=False,
    icon="sync",
)


@admin.register(PhysicalReport)
class PhysicalReportAdmin(ReadOnlyAdmin):
    """One page over all; a process's report has a page of its own."""

    verbs = (RECONCILE,)
    fields = (
        ("process", "machine"),
        ("limit", "generation"),
        ("containers_running", "containers_created", "containers_other"),
        ("without_token", "without_container"),
        ("reported", "took_seconds"),
        ("last_error", "error_at"),
        "instance",
    )

    def get_urls(self) -> list[URLPattern]:
        """The page's live part beside it."""
        live = self.admin_site.admin_view(self.live_view)
        return [path("live/", live, name="physical_live"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Complete without JavaScript; with it, it refreshes itself."""
        if not self.has_view_permission(request):
            raise PermissionDenied("This needs the permission admission.view_physicalreport.")
        context = {
            **self.admin_site.each_context(request),
            "title": "Physical slots",
            "opts": self.opts,
            "list_verbs": self.buttons(request, self.verbs, None),
            "refresh_seconds": REFRESH_SECONDS,
            **drawn(read_slots()),
        }
        response = TemplateResponse(request, "console/physical.html", context)
        add_never_cache_headers(response)
        return response

    def live_view(self, request: HttpRequest) -> HttpResponse:
        """The fragment."""
        if not self.has_view_permission(request):
            raise PermissionDenied("This needs the permission admission.view_physicalreport.")
        response = TemplateResponse(request, "console/physical_live.html", drawn(read_slots()))
        add_never_cache_headers(response)
        return response

    @admin.display(description="reported (UTC)")
    def reported(self, report: PhysicalReport) -> SafeString:
        return render.moment(report.reported_at)


def drawn(view: SlotsView) -> dict[str, Any]:
    """What the templates show."""
    snapshot, entitlement = view.snapshot, view.entitlement
    return {
        "view": view,
        "unrestricted": isinstance(entitlement, Unrestricted),
        "limited": entitlement if isinstance(entitlement, Entitlement) else None,
        "tier": TIERS.get(str(entitlement.limit), "") if isinstance(entitlement, Entitlement) else "",
        "config": snapshot.config if snapshot else None,
        "counts": snapshot.counts if snapshot else None,
        "bar": render.bar(len(snapshot.holders), snapshot.config.limit if snapshot.config else None, "slots")
        if snapshot
        else "",
        "lockdown": _lockdown(view),
        "holders": [_holder(h, view.as_of) for h in snapshot.holders] if snapshot else [],
        "waiters": [_waiter(w, view.as_of) for w in snapshot.waiting[:SHOWN_WAITERS]] if snapshot else [],
        "newest": view.processes[0] if view.processes else None,
        "newest_age": ago(view.processes[0].age_seconds, view.as_of) if view.processes else "",
        "processes": [_process(p, view) for p in view.processes],
        "asked": view.request,
        "asked_age": ago(view.request.age_seconds, view.as_of) if view.request else "",
    }


def _lockdown(view: SlotsView) -> dict[str, Any] | None:
    config = view.snapshot.config if view.snapshot else None
    if config is None or not config.lockdown_id:
        return None
    return {"reason": config.lockdown_reason, "age": ago(config.lockdown_age_seconds, view.as_of)}


def _holder(holder: Holder, as_of: datetime) -> dict[str, Any]:
    state = "recovering" if holder.recovering else holder.state.value
    why = "fenced" if holder.state.value == "fenced" else "past its deadline"
    return {
        "row": holder,
        "state": render.badge(state, STATE_TONES[state], why if holder.recovering else ""),
        "run": run_link(holder.run),
        "age": ago(holder.age_seconds, as_of),
        "left": render.EMPTY
        if holder.recovering
        else render.countdown(holder.deadline_seconds, warn_below=HOLD_SECONDS / 3),
        "container": render.code(holder.container_id[:12]) if holder.container_id else render.EMPTY,
    }


def _waiter(waiter: Waiter, as_of: datetime) -> dict[str, Any]:
    return {"row": waiter, "run": run_link(waiter.run), "age": ago(waiter.age_seconds, as_of)}


def _process(process: Process, view: SlotsView) -> dict[str, Any]:
    answered = view.request is None or process.reconcile_seen >= view.request.number
    silent = process.age_seconds > SILENT_SECONDS
    return {
        "row": process,
        "age": ago(process.age_seconds, view.as_of),
        "silent": render.badge("silent", "warn", "no pass for two minutes") if silent else "",
        "answered": "" if answered else render.badge("asked", "wait", "has not made the pass that was asked for yet"),
        "error_age": ago(process.error_age_seconds, view.as_of) if process.error_age_seconds is not None else "",
    }


def ago(seconds: float, as_of: datetime) -> SafeString:
    """An age, counted on by the browser."""
    return render.age(seconds, as_of - timedelta(seconds=seconds))


def run_link(run: str) -> SafeString | str:
    """`12/1` is attempt 1 of run 12; anything else is shown as it is."""
    number, _, attempt = run.partition("/")
    if number.isascii() and number.isdigit():
        return render.link("admin:admission_run_change", int(number), f"run {number} · attempt {attempt}")
    return run or render.EMPTY
