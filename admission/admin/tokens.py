"""API tokens: listed by the part that may be shown, revoked here, issued on their tenant's page."""

# ruff: noqa: D102 - a column says what it is by its description

from __future__ import annotations

from datetime import datetime

from django import forms
from django.contrib import admin
from django.db.models import BooleanField, Case, QuerySet, Value, When
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.safestring import SafeString

from admission.models import ApiToken, Tenant
from admission.services import tenants as services
from controlplane.admin_base import AutocompleteFilter, ReadOnlyAdmin, render
from controlplane.admin_base.verbs import Order, Outcome, ReasonForm, Verb
from controlplane.core.clock import database_now

EXPIRED = Case(When(expires_at__lt=Now(), then=Value(True)), default=Value(False), output_field=BooleanField())


class TokenForm(ReasonForm):
    """A new token: what will use it, until when, and why."""

    name = forms.CharField(max_length=100, help_text="What will use it, e.g. “nightly evaluation”.")
    expires_at = forms.DateTimeField(
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}),
        help_text="In UTC. Empty: until it is revoked.",
    )
    field_order = ("name", "expires_at", "reason")

    def clean_expires_at(self) -> datetime | None:
        """A token that is dead at birth is a mistake."""
        expires: datetime | None = self.cleaned_data["expires_at"]
        if expires is not None and expires <= database_now():
            raise forms.ValidationError("This time is in the past.")
        return expires


def _issue(order: Order) -> Outcome:
    tenant: Tenant = order.objects[0]
    values = order.values
    _, secret = services.issue_token(
        tenant, values["name"], actor=order.actor, reason=order.reason, expires_at=values["expires_at"]
    )
    return Outcome(f"New API token of {tenant.slug}: {values['name']}", 1, secret=secret)


def _revoke(order: Order) -> Outcome:
    revoked = sum(order.each(lambda one: services.revoke_token(one, actor=order.actor, reason=order.reason)))
    left = len(order.objects) - revoked
    note = f" {left} had been revoked before." if left else ""
    return Outcome(f"Revoked {revoked} API token{'' if revoked == 1 else 's'}.{note}", revoked)


ISSUE_TOKEN = Verb(
    name="issue-token",
    label="Issue API token",
    permission="admission.add_apitoken",
    perform=_issue,
    explain="A bearer credential for this tenant alone: it submits and reads the tenant's runs and nothing else. "
    "The secret is shown on the next page, once.",
    form=TokenForm,
    many=False,
    icon="key",
)

REVOKE = Verb(
    name="revoke",
    label="Revoke",
    permission="admission.change_apitoken",
    perform=_revoke,
    explain="Refused from the next call on. This cannot be undone: issue a new token instead.",
    applies=lambda token: token.revoked_at is None,
    danger=True,
    icon="block",
)


@admin.register(ApiToken)
class ApiTokenAdmin(ReadOnlyAdmin):
    """Credentials; a secret is never here, only what it begins with."""

    verbs = (REVOKE,)
    list_display = ("token", "owner", "name", "status", "created", "last_used", "expires")
    list_display_links = ("token",)
    list_filter = (("tenant", AutocompleteFilter),)
    list_select_related = ("tenant", "user")
    search_fields = ("=shown", "name__startswith")
    search_help_text = "First characters of the token, or its name"
    ordering = ("-id",)
    fields = ("shown", "name", "owner", "status", "created", "last_used", "expires", "revoked_at")
    empty_list_hint = "No token yet. Open a tenant and issue its first one: tenants submit work with it."

    @admin.display(description="token", ordering="shown")
    def token(self, token: ApiToken) -> SafeString:
        return render.code(f"{token.shown}…")

    @admin.display(description="acts for")
    def owner(self, token: ApiToken) -> SafeString:
        if token.tenant is not None:
            return render.link("admin:admission_tenant_change", token.tenant_id, token.tenant.slug)
        return render.badge(f"user {token.user}", "run")

    @admin.display(description="status")
    def status(self, token: ApiToken) -> SafeString:
        if token.revoked_at is not None:
            return render.badge("revoked", "mute")
        return render.badge("expired", "warn") if getattr(token, "expired", False) else render.badge("valid", "good")

    @admin.display(description="created", ordering="created_at")
    def created(self, token: ApiToken) -> SafeString:
        return render.moment(token.created_at)

    @admin.display(description="last used", ordering="last_used_at")
    def last_used(self, token: ApiToken) -> SafeString:
        return render.moment(token.last_used_at)

    @admin.display(description="expires", ordering="expires_at")
    def expires(self, token: ApiToken) -> SafeString:
        return render.moment(token.expires_at)

    def get_queryset(self, request: HttpRequest) -> QuerySet[ApiToken]:
        """Judges expiry by the database's clock."""
        queryset: QuerySet[ApiToken] = super().get_queryset(request)
        return queryset.annotate(expired=EXPIRED)
