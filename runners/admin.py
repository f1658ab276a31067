"""Runners and the tokens by which machines enrol."""

# ruff: noqa: D102 - a column says what it is by its description

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.contrib import admin
from django.db.models import BooleanField, Case, OuterRef, Q, QuerySet, Value, When
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.safestring import SafeString

from admission.models import Run, Tenant
from admission.states import HOLDING, DriverKind
from controlplane.admin_base import AutocompleteFilter, ReadOnlyAdmin, render
from controlplane.admin_base.clock import SecondsSince
from controlplane.admin_base.drivers import DriverSign, Health, judge_health, register_driver_source
from controlplane.admin_base.subqueries import CappedCount
from controlplane.core.conf import conf
from runners import secrets_admin  # noqa: F401 - registers itself, as this module does
from runners.admin_verbs import BRING_BACK, DRAIN, ISSUE, PAUSE, RESUME, REVOKE, REVOKE_TOKEN, ROTATE
from runners.models import EnrolmentToken, Runner

USABLE = Case(
    When(Q(uses_left__gt=0, expires_at__gt=Now()), then=Value(True)), default=Value(False), output_field=BooleanField()
)


def runner_health(runner: Any) -> Health:
    """By the database's clock, against the settings."""
    if runner.revoked_at is not None:
        return "dead"
    settings = conf()
    return judge_health(
        runner.heard_seconds,
        beat=settings.runner_heartbeat_seconds,
        silent=settings.runner_lease_seconds,
        draining=runner.draining_at is not None,
    )


def _signs(ids: Iterable[int]) -> Mapping[int, DriverSign]:
    found: QuerySet[Any] = Runner.objects.filter(pk__in=list(ids)).annotate(heard_seconds=SecondsSince("contact_at"))
    return {r.pk: DriverSign(f"Runner {r.name}", runner_health(r), r.heard_seconds) for r in found}


register_driver_source(DriverKind.RUNNER, _signs)


@admin.register(Runner)
class RunnerAdmin(ReadOnlyAdmin):
    """Machines that take work over REST."""

    verbs = (PAUSE, DRAIN, RESUME, ROTATE, BRING_BACK, REVOKE)
    list_display = ("name", "health", "mode", "contact", "load", "runs", "owner", "label_tags", "version", "host")
    list_filter = (("tenant", AutocompleteFilter),)
    list_select_related = ("tenant",)
    search_fields = ("name__startswith", "host__startswith", "=shown")
    ordering = ("name", "id")
    fields = (
        ("name", "health", "mode", "contact"),
        ("load", "runs", "owner"),
        ("label_tags", "trust_tags", "executes_as"),
        ("version", "host", "shown"),
        ("enrolled_at", "rotated_at", "revoked_at"),
        ("paused_at", "resume_at", "pause_note"),
        ("draining_at", "stays", "spent_at"),
    )
    empty_list_hint = "No runner yet. Issue an enrolment token, then on the machine: wharfinger runner enrol, and run."

    def get_queryset(self, request: HttpRequest) -> QuerySet[Runner]:
        """With the age of the last contact and the number of runs held."""
        queryset: QuerySet[Runner] = super().get_queryset(request)
        held = Run.objects.filter(driver_kind=DriverKind.RUNNER, driver_id=OuterRef("pk"), state__in=HOLDING)
        return queryset.annotate(heard_seconds=SecondsSince("contact_at"), holding=CappedCount(held))

    @admin.display(description="health")
    def health(self, runner: Any) -> SafeString:
        return render.badge("revoked") if runner.revoked_at else render.health_badge(runner_health(runner))

    @admin.display(description="mode")
    def mode(self, runner: Runner) -> SafeString:
        if runner.draining_at is not None:
            return render.badge("draining", "ready")
        if runner.paused_at is not None:
            until = f", until {runner.resume_at:%Y-%m-%d %H:%M} UTC" if runner.resume_at else ""
            return render.badge("paused", "warn", title=f"{runner.pause_note}{until}")
        if runner.spent_at is not None:
            return render.badge("had its one run", "ready")
        return render.badge("active") if runner.revoked_at is None else render.EMPTY

    @admin.display(description="last contact", ordering="-contact_at")
    def contact(self, runner: Any) -> SafeString:
        settings = conf()
        return render.age(
            runner.heard_seconds,
            runner.contact_at,
            warn=2.5 * settings.runner_heartbeat_seconds,
            bad=settings.runner_lease_seconds,
        )

    @admin.display(description="slots in use")
    def load(self, runner: Any) -> SafeString:
        return render.bar(runner.holding, runner.slots, "slots")

    @admin.display(description="runs")
    def runs(self, runner: Any) -> SafeString:
        query = {"driver_kind__exact": "runner", "driver_id": runner.pk}
        return render.list_link("admin:admission_run_changelist", f"{runner.holding} held", **query)

    @admin.display(description="works for")
    def owner(self, runner: Runner) -> SafeString:
        return owner_cell(runner.tenant)

    @admin.display(description="executors")
    def executes_as(self, runner: Runner) -> str:
        return ", ".join(runner.executors)

    @admin.display(description="takes")
    def stays(self, runner: Runner) -> str:
        return "one run, then ends" if runner.one_job else "runs until it is stopped"

    @admin.display(description="labels")
    def label_tags(self, runner: Runner) -> SafeString:
        return render.labels(runner.labels)

    @admin.display(description="labels given by the server")
    def trust_tags(self, runner: Runner) -> SafeString:
        return render.labels(runner.trust_labels)


@admin.register(EnrolmentToken)
class EnrolmentTokenAdmin(ReadOnlyAdmin):
    """Short-lived rights to enrol machines."""

    verbs = (ISSUE, REVOKE_TOKEN)
    list_display = ("token", "name", "status", "uses_left", "owner", "expires", "created_by")
    list_display_links = ("token",)
    list_select_related = ("tenant",)
    search_fields = ("=shown", "name__startswith")
    ordering = ("-id",)
    fields = (
        ("shown", "name", "status"),
        ("uses_left", "expires"),
        ("owner", "created_by"),
        ("runner", "one_job"),
        "trust_labels",
    )
    empty_list_hint = "No enrolment token yet. Issue one to bring in a machine."

    def get_queryset(self, request: HttpRequest) -> QuerySet[EnrolmentToken]:
        """Judges expiry by the database's clock."""
        queryset: QuerySet[EnrolmentToken] = super().get_queryset(request)
        return queryset.annotate(usable=USABLE)

    @admin.display(description="token", ordering="shown")
    def token(self, token: EnrolmentToken) -> SafeString:
        return render.code(f"{token.shown}…")

    @admin.display(description="status")
    def status(self, token: Any) -> SafeString:
        if token.usable:
            return render.badge("usable", "good")
        return render.badge("used up" if token.uses_left == 0 else "expired")

    @admin.display(description="for")
    def owner(self, token: EnrolmentToken) -> SafeString:
        return owner_cell(token.tenant)

    @admin.display(description="expires (UTC)", ordering="expires_at")
    def expires(self, token: EnrolmentToken) -> SafeString:
        return render.moment(token.expires_at)


def owner_cell(tenant: Tenant | None) -> SafeString:
    """One tenant, or everybody."""
    if tenant is None:
        return render.badge("shared")
    return render.link("admin:admission_tenant_change", tenant.pk, tenant.slug)
