"""Runs: the list with its views, and the page of one run. State is read here and changed by verbs."""

# ruff: noqa: D102 - a column says what it is by its description

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.safestring import SafeString

from admission.admin import timeline
from admission.admin.masking import masked_command, masked_spec
from admission.admin.run_verbs import CANCEL, REQUEUE
from admission.admin.why import why_panel
from admission.models import Attempt, Permit, Run, Tenant
from admission.spec import Resources
from admission.states import HOLDING, RunState
from controlplane.admin_base import AutocompleteFilter, DateRangeFilter, ReadOnlyAdmin, render
from controlplane.admin_base.clock import SecondsSince, SecondsToLapse
from controlplane.admin_base.filters import fixed_values
from controlplane.admin_base.verbs import Verb
from controlplane.core.clock import database_now

VIEWS: Sequence[tuple[str, dict[str, str]]] = (
    ("All", {}),
    ("Queued", {"state__exact": "queued"}),
    ("Admitted", {"state__exact": "admitted"}),
    ("Running", {"state__exact": "running"}),
    ("Succeeded", {"state__exact": "succeeded"}),
    ("Failed", {"state__exact": "failed"}),
    ("Timed out", {"state__exact": "timed_out"}),
    ("Interrupted", {"state__exact": "interrupted"}),
    ("Cancelled", {"state__exact": "cancelled"}),
)


MOST_ATTEMPTS = 100


MOST_FOUND = 10_000
"""By the beginning of a name: what begins with one letter may be all there is."""


def named(term: str) -> QuerySet[Run, int]:
    """Whose name begins so, of many some. That it is not empty is said for the index, which holds no others."""
    found = Run.objects.filter(name__startswith=term).exclude(name="")
    return found.order_by().values_list("pk", flat=True)[:MOST_FOUND]


def keyed(term: str) -> QuerySet[Run, int]:
    """Of whichever tenant: keys are indexed by tenant, so each of these is asked."""
    found = Run.objects.filter(tenant__in=Tenant.objects.order_by(), idempotency_key=term)
    return found.order_by().values_list("pk", flat=True)


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin):
    """Every run of every tenant."""

    verbs: Sequence[Verb] = (CANCEL, REQUEUE)
    change_form_template = "console/run.html"
    list_display = ("number", "title", "state_cell", "owner", "driver", "tries_cell", "waited", "ran", "age", "why")
    list_display_links = ("number", "title")
    list_filter = (
        "state",
        ("tenant", AutocompleteFilter),
        ("batch", AutocompleteFilter),
        "driver_kind",
        fixed_values("kind", "task", "session"),
        ("created_at", DateRangeFilter),
    )
    list_select_related = ("tenant",)
    search_fields = ("name",)
    search_help_text = f"Run id, idempotency key, or the beginning of a name ({MOST_FOUND:,} found at most)"
    ordering = ("-id",)
    fields = ()
    empty_list_hint = "No run yet. Issue a tenant an API token, then: wharfinger submit --file runs.jsonl"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        """Without specifications, which may be a megabyte each; with ages by the database's clock."""
        queryset: QuerySet[Run] = super().get_queryset(request)
        return queryset.select_related("tenant").defer("spec").annotate(age_seconds=SecondsSince("created_at"))

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """The pages of drivers link to their runs."""
        return lookup == "driver_id" or super().lookup_allowed(lookup, value, request)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """A number is an id, found by its key. Anything else is an idempotency key or the beginning of a name."""
        term = search_term.strip().removeprefix("#").removeprefix("run ")
        if not term:
            return queryset, False
        if term.isascii() and term.isdigit() and len(term) < 19:
            return queryset.filter(pk=int(term)), False
        return queryset.filter(pk__in=named(term).union(keyed(term))), False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Adds the row of views: links to the list by state that keep the other filters."""
        state = request.GET.get("state__exact", "")
        views = []
        for label, query in VIEWS:
            kept = request.GET.copy()
            for name in ("state__exact", "p", "e"):
                kept.pop(name, None)
            kept.update(query)
            views.append(
                {"label": label, "url": f"?{kept.urlencode()}", "current": state == query.get("state__exact", "")}
            )
        return super().changelist_view(request, {"views": views, **(extra_context or {})})

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """The page of one run: a fixed number of statements beside the row itself."""
        run: Run | None = kwargs.get("obj")
        if run is not None:
            context.update(run_page(run))
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description="run", ordering="id")
    def number(self, run: Run) -> str:
        return f"#{run.pk}"

    @admin.display(description="name", ordering="name")
    def title(self, run: Run) -> SafeString | str:
        return run.name or render.EMPTY

    @admin.display(description="state", ordering="state")
    def state_cell(self, run: Run) -> SafeString:
        return state_cell(run)

    @admin.display(description="tenant", ordering="tenant__slug")
    def owner(self, run: Run) -> SafeString:
        return render.link("admin:admission_tenant_change", run.tenant_id, run.tenant.slug)

    @admin.display(description="driver", ordering="driver_name")
    def driver(self, run: Run) -> SafeString:
        return render.driver_link(run.driver_kind, run.driver_id, run.driver_name)

    @admin.display(description="tries")
    def tries_cell(self, run: Run) -> str:
        return f"{run.tries} of {run.max_tries}"

    @admin.display(description="waited")
    def waited(self, run: Run) -> SafeString | str:
        return render.length(run.created_at, run.admitted_at)

    @admin.display(description="ran")
    def ran(self, run: Run) -> SafeString | str:
        return render.length(run.started_at, run.finished_at)

    @admin.display(description="age", ordering="-id")
    def age(self, run: Run) -> SafeString:
        return render.age(getattr(run, "age_seconds", None), run.created_at)

    @admin.display(description="reason")
    def why(self, run: Run) -> SafeString | str:
        if run.reason:
            return run.reason.replace("_", " ")
        return f"exit code {run.exit_code}" if run.exit_code else render.EMPTY


def state_cell(run: Run) -> SafeString:
    """The state, and beside it that somebody asked to end the run."""
    shown = render.state_badge(run.state)
    if run.state in HOLDING and run.cancel_requested_at is not None:
        return SafeString(f"{shown} {render.badge('stopping', 'warn')}")
    return shown


def run_page(run: Run) -> dict[str, Any]:
    """Everything that the page shows of one run, beside its log."""
    # A run that is given back again and again burns none of its tries: its attempts are not bounded by them.
    attempts = list(Attempt.objects.filter(run=run).order_by("-number")[:MOST_ATTEMPTS])[::-1]
    permits = Permit.objects.filter(run=run).annotate(
        left_seconds=SecondsToLapse("renewed_at", "lapse_seconds"), held_seconds=SecondsSince("acquired_at")
    )
    bars = timeline.bars(run, attempts, database_now())
    return {
        "run": run,
        "title": f"Run {run.pk}",
        "state": state_cell(run),
        "steps": timeline.steps(run),
        "attempts": [_attempt(attempt, bar) for attempt, bar in zip(attempts, bars, strict=True)],
        "permits": [_permit(permit) for permit in permits],
        "facts": _facts(run),
        "spec": render.json_block(masked_spec(run.spec)),
        "log_url": reverse("admin:run_log", args=[run.pk]),
        "download_url": reverse("admin:run_log_download", args=[run.pk]),
        "follow": run.state in HOLDING,
        "why": why_panel(run.pk) if run.state == RunState.QUEUED else None,
        "audit_url": f"{reverse('admin:core_auditentry_changelist')}?subject_type=run&subject={run.pk}",
    }


def _attempt(attempt: Attempt, bar: timeline.AttemptBar) -> dict[str, Any]:
    return {
        "row": attempt,
        "bar": bar,
        "ending": render.state_badge(attempt.ending) if attempt.ending else render.badge("open", "run"),
        "driver": render.driver_link(attempt.driver_kind, attempt.driver_id, attempt.driver_name),
        "admitted": render.moment(attempt.admitted_at),
        "waited": render.length(attempt.admitted_at, attempt.started_at),
        "ran": render.length(attempt.started_at, attempt.released_at),
    }


def _permit(permit: Any) -> dict[str, Any]:
    return {
        "row": permit,
        "age": render.age(permit.held_seconds, permit.acquired_at),
        "lapses": render.countdown(permit.left_seconds, warn_below=permit.lapse_seconds / 3),
    }


def _facts(run: Run) -> list[tuple[str, object]]:
    spec = run.spec if isinstance(run.spec, dict) else {}
    limits = {**Resources().model_dump(), **(spec.get("resources") or {})}
    facts: list[tuple[str, object]] = [
        ("Tenant", render.link("admin:admission_tenant_change", run.tenant_id, run.tenant.slug)),
        ("Driver", render.driver_link(run.driver_kind, run.driver_id, run.driver_name)),
        ("Image", render.code(spec.get("image", "python:3-slim"))),
        ("Command", render.code(" ".join(masked_command(spec.get("command", [])))[:300])),
        ("Limits", f"{limits['cpu']:g} CPU · {limits['memory_mib']} MiB · {limits['pids']} processes"),
        ("Time limit", render.span(run.timeout_seconds)),
        ("Tries", f"{run.tries} of {run.max_tries} started · attempt {run.attempt} · epoch {run.epoch}"),
        ("Exit code", render.EMPTY if run.exit_code is None else render.code(run.exit_code)),
        ("Submitted by", run.created_by or render.EMPTY),
    ]
    if run.batch_id is not None:
        facts.insert(1, ("Batch", render.link("admin:admission_batch_change", run.batch_id, str(run.batch))))
    optional = {
        "Priority": run.priority or None,
        "Weight": run.weight if run.weight != 1 else None,
        "Concurrency key": run.concurrency_key,
        "Harness": run.harness,
        "Labels": render.labels(run.labels) if run.labels else None,
        "Idempotency key": render.code(run.idempotency_key) if run.idempotency_key else None,
    }
    return facts + [(name, value) for name, value in optional.items() if value]
