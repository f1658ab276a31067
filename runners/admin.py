"""Runners and the tokens by which machines enrol."""

# ruff: noqa: D102 - a column says what it is by its description

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from django import forms
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
from controlplane.admin_base.verbs import Order, Outcome, Preview, ReasonForm, Verb
from controlplane.core.conf import conf
from runners import secrets_admin  # noqa: F401 - registers itself, as this module does
from runners.models import EnrolmentToken, Runner
from runners.services import enrolment, fleet

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


class EnrolmentForm(ReasonForm):
    """For how many machines, how long, and whose work they do."""

    name = forms.CharField(max_length=100, help_text="What the machines are, e.g. “lab racks”.")
    uses = forms.IntegerField(
        min_value=1, max_value=enrolment.MAX_SLOTS, initial=1, help_text="Machines that may enrol."
    )
    hours = forms.IntegerField(min_value=1, max_value=720, initial=1, help_text="Until the token expires.")
    tenant = forms.SlugField(required=False, help_text="Slug of the only tenant whose work they take. Empty: shared.")
    field_order = ("name", "uses", "hours", "tenant", "reason")

    def clean_tenant(self) -> Tenant | None:
        """By its slug: a list of ten thousand would be no help."""
        slug = self.cleaned_data["tenant"]
        if not slug:
            return None
        tenant = Tenant.objects.filter(slug=slug).first()
        if tenant is None:
            raise forms.ValidationError(f"There is no tenant {slug!r}.")
        return tenant


def _issue(order: Order) -> Outcome:
    values = order.values
    _, secret = enrolment.issue_enrolment_token(
        actor=order.actor,
        name=values["name"],
        uses=values["uses"],
        lifetime=timedelta(hours=values["hours"]),
        tenant=values["tenant"],
        reason=order.reason,
    )
    return Outcome(f"New enrolment token: {values['name']}", 1, secret=secret)


def _each(verb: Any, what: str) -> Any:
    def perform(order: Order) -> Outcome:
        done = sum(verb(runner.pk, actor=order.actor, reason=order.reason) for runner in order.objects)
        return _counted(f"runner{'' if done == 1 else 's'} {what}", done, len(order.objects))

    return perform


def _revoke(order: Order) -> Outcome:
    taken = [fleet.revoke_runner(runner.pk, actor=order.actor, reason=order.reason) for runner in order.objects]
    done = [count for count in taken if count is not None]
    return _counted(f"revoked, {sum(done)} runs taken from them", len(done), len(taken))


def _revoke_tokens(order: Order) -> Outcome:
    done = sum(
        enrolment.revoke_enrolment_token(token, actor=order.actor, reason=order.reason) for token in order.objects
    )
    return _counted("revoked; runners that enrolled with them stay", done, len(order.objects))


def _counted(what: str, done: int, asked: int) -> Outcome:
    note = f" {asked - done} left as they were." if asked > done else ""
    return Outcome(f"{done} {what}.{note}", done)


def _preview(runners: Sequence[Any], _: Mapping[str, Any]) -> Preview:
    return Preview([f"{r.name}: {r.holding} of {r.slots} slots in use." for r in runners])


def _active(runner: Runner) -> bool:
    return runner.revoked_at is None


PAUSE = Verb(
    name="pause",
    label="Pause",
    permission="runners.pause_runner",
    perform=_each(fleet.pause_runner, "paused"),
    explain="It is given nothing more until it is resumed; what it runs goes on.",
    preview=_preview,
    applies=lambda runner: _active(runner) and runner.paused_at is None,
    icon="pause_circle",
)
DRAIN = Verb(
    name="drain",
    label="Drain",
    permission="runners.pause_runner",
    perform=_each(fleet.drain_runner, "draining"),
    explain="It is given nothing more, finishes what it has, and ends.",
    preview=_preview,
    applies=lambda runner: _active(runner) and runner.draining_at is None,
    icon="water_drop",
)
RESUME = Verb(
    name="resume",
    label="Resume",
    permission="runners.pause_runner",
    perform=_each(fleet.resume_runner, "taking work again"),
    explain="It is given work again, after a pause or a drain.",
    applies=lambda runner: _active(runner) and bool(runner.paused_at or runner.draining_at),
    icon="play_circle",
)
REVOKE = Verb(
    name="revoke",
    label="Revoke",
    permission="runners.revoke_runner",
    perform=_revoke,
    explain="Its token is refused from the next call on, and its runs are taken from it. To come back, the machine "
    "must enrol anew.",
    preview=_preview,
    applies=_active,
    danger=True,
    icon="block",
)
ISSUE = Verb(
    name="issue",
    label="Issue enrolment token",
    permission="runners.enrol_runner",
    perform=_issue,
    explain="Whoever has it may enrol machines as runners. The secret is shown on the next page, once.",
    form=EnrolmentForm,
    on_list=True,
    icon="vpn_key",
)
REVOKE_TOKEN = Verb(
    name="revoke",
    label="Revoke",
    permission="runners.enrol_runner",
    perform=_revoke_tokens,
    explain="No further machine enrols with it. Runners that did keep their own tokens.",
    applies=lambda token: getattr(token, "usable", False),
    danger=True,
    icon="block",
)


@admin.register(Runner)
class RunnerAdmin(ReadOnlyAdmin):
    """Machines that take work over REST."""

    verbs = (PAUSE, DRAIN, RESUME, REVOKE)
    list_display = ("name", "health", "mode", "contact", "load", "runs", "owner", "label_tags", "version", "host")
    list_filter = (("tenant", AutocompleteFilter),)
    list_select_related = ("tenant",)
    search_fields = ("name__startswith", "host__startswith", "=shown")
    ordering = ("name", "id")
    fields = (
        ("name", "health", "mode", "contact"),
        ("load", "runs", "owner"),
        ("label_tags", "trust_tags", "executors"),
        ("version", "host", "shown"),
        ("enrolled_at", "paused_at", "draining_at", "revoked_at"),
        "pause_note",
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
            return render.badge("paused", "warn", title=runner.pause_note)
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
    fields = (("shown", "name", "status"), ("uses_left", "expires"), ("owner", "created_by"), "trust_labels")
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
