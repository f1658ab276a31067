"""Tenants: quota, live use, pause, tokens. A form here changes name, weight and queue depth; never a counter."""

# ruff: noqa: D102 - a column says what it is by its description

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.safestring import SafeString

from admission.admin.tenant_verbs import TENANT_VERBS
from admission.models import ApiToken, Counter, Permit, Run, Tenant
from admission.services import tenants as services
from admission.states import HOLDING, RunState, Scope
from controlplane.admin_base import ModelAdmin, render
from controlplane.admin_base.subqueries import CappedCount, WeightSum, capped
from controlplane.admin_base.verbs import Verb, actor_of
from controlplane.core.errors import DomainError

if TYPE_CHECKING:
    _TenantModelForm = forms.ModelForm[Tenant]
else:
    _TenantModelForm = forms.ModelForm

CHANGEABLE = ("name", "weight", "queue_depth")


class TenantForm(_TenantModelForm):
    """What may be edited, checked by the service's own rules so that a mistake shows beside its field."""

    class Meta:
        model = Tenant
        fields = ("slug", *CHANGEABLE)

    def clean_slug(self) -> str:
        """Stricter than Django's slug: it stands in host-like places."""
        slug: str = self.cleaned_data["slug"]
        if not services.SLUG.fullmatch(slug):
            raise forms.ValidationError("Lower-case letters, digits and hyphens; no hyphen first or last.")
        return slug

    def clean_weight(self) -> Any:
        """A positive number."""
        try:
            return services.parse_weight(self.cleaned_data["weight"])
        except DomainError as error:
            raise forms.ValidationError(str(error)) from error


@admin.register(Tenant)
class TenantAdmin(ModelAdmin):
    """Who submits work, and how much of the fleet it may use at once."""

    verbs: Sequence[Verb] = TENANT_VERBS
    form = TenantForm
    change_form_template = "console/tenant.html"
    list_display = ("slug", "name", "use", "quota", "queued", "share", "status")
    list_display_links = ("slug",)
    list_filter = ("has_quota", ("paused_at", admin.EmptyFieldListFilter))
    search_fields = ("slug__startswith", "name__istartswith")
    search_help_text = "Beginning of the slug or name"
    ordering = ("slug",)
    fieldsets = (("Settings", {"fields": (("slug", "name"), ("weight", "queue_depth"))}),)
    empty_list_hint = "No tenant yet. Add one, give it a quota, and issue it an API token: then it can submit runs."

    def get_queryset(self, request: HttpRequest) -> QuerySet[Tenant]:
        """With live use: a tenant's counter where a quota stands, its runs in flight otherwise."""
        queryset: QuerySet[Tenant] = super().get_queryset(request)
        counter = Counter.objects.filter(scope=Scope.TENANT, tenant=OuterRef("pk")).order_by("pk")
        runs = Run.objects.filter(tenant=OuterRef("pk"))
        return queryset.annotate(
            quota_limit=Subquery(counter.values("limit")[:1]),
            counted=Subquery(counter.values("in_flight")[:1]),
            holding=WeightSum(runs.filter(state__in=HOLDING)),
            waiting=CappedCount(runs.filter(state=RunState.QUEUED)),
        )

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """The slug stands in tokens, paths and audit entries."""
        return ("slug",) if obj is not None else ()

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Deleting is a verb, with a reason."""
        return False

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Through the services: the row is never saved whole."""
        actor = actor_of(request)
        values = {name: form.cleaned_data[name] for name in form.changed_data if name in CHANGEABLE}
        if change:
            if values:
                services.change_tenant(obj, actor=actor, **values)
            return
        tenant = services.create_tenant(form.cleaned_data["slug"], actor=actor, **values)
        obj.pk = tenant.pk

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """A refusal of the service, e.g. a slug taken meanwhile, is a message instead of an error page."""
        try:
            return super().add_view(request, form_url, extra_context)
        except DomainError as refusal:
            self.message_user(request, str(refusal), messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: str | None = None) -> HttpResponse:
        """To the new tenant's page, where its quota and first token are given."""
        if "_addanother" in request.POST or "_popup" in request.POST:
            return super().response_add(request, obj, post_url_continue)
        self.message_user(
            request, f"Tenant {obj.slug} is here, without a quota. Give it one, and a token.", messages.SUCCESS
        )
        return HttpResponseRedirect(reverse("admin:admission_tenant_change", args=[obj.pk]))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """The page of one tenant: a handful of bounded statements."""
        tenant: Tenant | None = kwargs.get("obj")
        context["show_save_and_add_another"] = False
        if tenant is not None:
            context.update(tenant_page(tenant))
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description="in use")
    def use(self, tenant: Any) -> SafeString:
        return render.bar(in_use(tenant), tenant.quota_limit if tenant.has_quota else None)

    @admin.display(description="quota", ordering="quota_limit")
    def quota(self, tenant: Any) -> str:
        return f"{tenant.quota_limit:,}" if tenant.has_quota else "none"

    @admin.display(description="queued")
    def queued(self, tenant: Any) -> SafeString | str:
        if not tenant.waiting:
            return "0"
        query = {"tenant__id__exact": tenant.pk, "state__exact": "queued"}
        return render.list_link("admin:admission_run_changelist", capped(tenant.waiting), **query)

    @admin.display(description="weight", ordering="weight")
    def share(self, tenant: Tenant) -> str:
        return f"{tenant.weight.normalize():f}"

    @admin.display(description="status", ordering="paused_at")
    def status(self, tenant: Tenant) -> SafeString:
        return status_badge(tenant)


def in_use(tenant: Any) -> int:
    """The weight in flight; outside permits of a tenant without quota are on its counter, beside its runs."""
    counted = int(tenant.counted or 0)
    return counted if tenant.has_quota else counted + int(tenant.holding)


def status_badge(tenant: Tenant) -> SafeString:
    """Whether work of this tenant is admitted."""
    if tenant.deleting_at is not None:
        return render.badge("deleting", "bad")
    if tenant.paused_at is not None:
        until = f"resumes {tenant.resume_at:%Y-%m-%d %H:%M} UTC" if tenant.resume_at else "until somebody resumes it"
        return render.badge("paused", "warn", title=f"{tenant.pause_note} ({until})")
    return render.badge("admitting", "good")


def tenant_page(tenant: Any) -> dict[str, Any]:
    """Live use and the ways to everything that belongs to this tenant."""
    limit = tenant.quota_limit if tenant.has_quota else None
    unexpired = Q(expires_at__isnull=True) | Q(expires_at__gt=Now())
    tokens: QuerySet[ApiToken] = ApiToken.objects.filter(unexpired, tenant=tenant, revoked_at__isnull=True)
    return {
        "tenant": tenant,
        "status": status_badge(tenant),
        "used": in_use(tenant),
        "limit": limit,
        "over": max(in_use(tenant) - limit, 0) if limit is not None else 0,
        "bar": render.bar(in_use(tenant), limit),
        "waiting": capped(tenant.waiting),
        "permits": capped(Permit.objects.filter(tenant=tenant)[:1001].count()),
        "tokens": tokens.count(),
        "recent": [_recent(run) for run in _recent_runs(tenant)],
        "links": _links(tenant),
        "audit_url": f"{reverse('admin:core_auditentry_changelist')}?subject_type=tenant&subject={tenant.slug}",
        "peak_url": reverse("admin:tenant_peak", args=[tenant.pk]),
    }


def _links(tenant: Tenant) -> Mapping[str, str]:
    by_tenant = {"tenant__id__exact": tenant.pk}
    pages = {"runs": "run", "permits": "permit", "tokens": "apitoken", "batches": "batch", "counters": "counter"}
    return {name: reverse(f"admin:admission_{model}_changelist", query=by_tenant) for name, model in pages.items()}


def _recent_runs(tenant: Tenant) -> QuerySet[Run]:
    return Run.objects.filter(tenant=tenant).defer("spec").order_by("-id")[:8]


def _recent(run: Run) -> dict[str, Any]:
    ended: datetime | None = run.finished_at
    return {
        "link": render.link("admin:admission_run_change", run.pk, f"#{run.pk}"),
        "name": run.name or render.EMPTY,
        "state": render.state_badge(run.state),
        "created": render.moment(run.created_at),
        "ended": render.moment(ended),
        "driver": render.driver_link(run.driver_kind, run.driver_id, run.driver_name),
    }
