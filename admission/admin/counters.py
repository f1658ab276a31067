"""Counters and batches: read-only lists."""

# ruff: noqa: D102 - a column says what it is by its description

from __future__ import annotations

from collections.abc import Sequence

from django.contrib import admin
from django.db.models import OuterRef, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from admission.admin.limit_verbs import LIMIT_VERBS
from admission.models import Batch, Counter, Run
from admission.states import RunState, Scope
from controlplane.admin_base import AutocompleteFilter, ReadOnlyAdmin, render
from controlplane.admin_base.subqueries import CappedCount, capped
from controlplane.admin_base.verbs import Verb

OPEN = (RunState.QUEUED, RunState.ADMITTED, RunState.RUNNING)


@admin.register(Counter)
class CounterAdmin(ReadOnlyAdmin):
    """Limits and what is in flight under them. A tenant's limit is changed on its page, the others by verbs here."""

    verbs: Sequence[Verb] = LIMIT_VERBS
    list_display = ("scope_badge", "what", "use", "limit", "in_flight", "admits")
    list_display_links = ("what",)
    list_filter = ("scope", ("tenant", AutocompleteFilter))
    list_select_related = ("tenant",)
    search_fields = ("key__startswith", "tenant__slug__startswith")
    search_help_text = "Beginning of the key or of the tenant's slug"
    ordering = ("scope", "key")
    fields = ("scope", "key", "tenant", "use", "limit", "in_flight", "admits", "backlog", "virtual_time", "served_at")
    empty_list_hint = (
        "A tenant brings its counter along; concurrency keys and harnesses get theirs with their first run."
    )

    @admin.display(description="scope", ordering="scope")
    def scope_badge(self, counter: Counter) -> SafeString:
        return scope_badge(counter.scope)

    @admin.display(description="limits", ordering="key")
    def what(self, counter: Counter) -> str:
        if counter.tenant is None:
            return counter.key
        own_key = counter.key.partition(":")[2]
        return f"{counter.tenant.slug} · {own_key}" if counter.scope == Scope.KEY else counter.tenant.slug

    @admin.display(description="in use")
    def use(self, counter: Counter) -> SafeString:
        return render.bar(counter.in_flight, counter.limit)

    @admin.display(description="status", ordering="paused")
    def admits(self, counter: Counter) -> SafeString:
        return render.badge("paused", "warn") if counter.paused else render.badge("admitting", "good")


@admin.register(Batch)
class BatchAdmin(ReadOnlyAdmin):
    """Runs that were submitted together."""

    list_display = ("name", "owner", "created", "total", "still_open", "succeeded", "other", "runs")
    list_filter = (("tenant", AutocompleteFilter),)
    list_select_related = ("tenant",)
    search_fields = ("name__startswith",)
    ordering = ("-id",)
    fields = ("name", "owner", "created", "total", "still_open", "succeeded", "other", "runs")
    empty_list_hint = "Runs get a batch when they are submitted together under a name: wharfinger submit --batch NAME."

    def get_queryset(self, request: HttpRequest) -> QuerySet[Batch]:
        """With its counts, each bounded."""
        runs = Run.objects.filter(batch=OuterRef("pk"))
        queryset: QuerySet[Batch] = super().get_queryset(request)
        return queryset.annotate(
            runs_total=CappedCount(runs),
            runs_open=CappedCount(runs.filter(state__in=OPEN)),
            runs_good=CappedCount(runs.filter(state=RunState.SUCCEEDED)),
            runs_other=CappedCount(runs.exclude(state__in=(*OPEN, RunState.SUCCEEDED))),
        )

    @admin.display(description="tenant", ordering="tenant__slug")
    def owner(self, batch: Batch) -> SafeString:
        return render.link("admin:admission_tenant_change", batch.tenant_id, batch.tenant.slug)

    @admin.display(description="created", ordering="id")
    def created(self, batch: Batch) -> SafeString:
        return render.moment(batch.created_at)

    @admin.display(description="runs")
    def total(self, batch: Batch) -> str:
        return capped(getattr(batch, "runs_total", 0))

    @admin.display(description="open")
    def still_open(self, batch: Batch) -> str:
        return capped(getattr(batch, "runs_open", 0))

    @admin.display(description="succeeded")
    def succeeded(self, batch: Batch) -> str:
        return capped(getattr(batch, "runs_good", 0))

    @admin.display(description="ended otherwise")
    def other(self, batch: Batch) -> str:
        return capped(getattr(batch, "runs_other", 0))

    @admin.display(description="")
    def runs(self, batch: Batch) -> SafeString:
        return render.list_link("admin:admission_run_changelist", "show runs", batch__id__exact=batch.pk)


def scope_badge(scope: str) -> SafeString:
    """What kind of limit."""
    tone = {Scope.TENANT: "run", Scope.KEY: "ready", Scope.HARNESS: "wait"}
    return render.badge(Scope(scope).label.lower(), tone.get(Scope(scope), "mute"))
