"""Secrets in the admin: names and times. A value can be written here and read nowhere."""

# ruff: noqa: D102 - a column says what it is by its description

from __future__ import annotations

from collections.abc import Sequence

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from admission.models import Tenant
from controlplane.admin_base import AutocompleteFilter, ReadOnlyAdmin, render
from controlplane.admin_base.verbs import Order, Outcome, ReasonForm, Verb
from runners.models import Secret
from runners.services import secrets


class ValueForm(ReasonForm):
    """The new value; a page that is shown again does not carry it."""

    value = forms.CharField(
        max_length=secrets.MOST_BYTES,
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}, render_value=False),
        help_text=f"At least {secrets.LEAST_BYTES} bytes. Values of many lines: wharfinger secret set NAME --file …",
    )
    field_order: Sequence[str] = ("value", "reason")


class SecretForm(ValueForm):
    """A new secret, or a new value of one."""

    tenant = forms.SlugField(help_text="Whose: the tenant's slug.")
    name = forms.CharField(max_length=200, help_text="As runs name it; also the name of the environment variable.")
    field_order = ("tenant", "name", "value", "reason")

    def clean_tenant(self) -> Tenant:
        """By its slug: a list of ten thousand would be no help."""
        tenant = Tenant.objects.filter(slug=self.cleaned_data["tenant"]).first()
        if tenant is None:
            raise forms.ValidationError("There is no such tenant.")
        return tenant


def _set(order: Order) -> Outcome:
    v = order.values
    created = secrets.set_secret(v["tenant"], v["name"], v["value"], actor=order.actor, reason=order.reason)
    return Outcome(f"{v['tenant'].slug}/{v['name']} {'is set' if created else 'has a new value'}.", 1)


def _change(order: Order) -> Outcome:
    secret: Secret = order.objects[0]
    secrets.set_secret(secret.tenant, secret.name, order.values["value"], actor=order.actor, reason=order.reason)
    return Outcome(f"{secret.tenant.slug}/{secret.name} has a new value.", 1)


def _delete(order: Order) -> Outcome:
    order.each(lambda one: secrets.delete_secret(one.tenant, one.name, actor=order.actor, reason=order.reason))
    return Outcome(f"Deleted {len(order.objects)} secrets.", len(order.objects))


SET = Verb(
    name="set",
    label="Set a secret",
    permission="runners.manage_secret",
    perform=_set,
    explain="Encrypted when it is stored and shown to nobody. Runs that name it get it as an environment variable.",
    form=SecretForm,
    many=False,
    on_list=True,
    icon="key",
)
CHANGE = Verb(
    name="change",
    label="New value",
    permission="runners.manage_secret",
    perform=_change,
    explain="Runs that start from now on get the new value; those under way keep what they were given.",
    form=ValueForm,
    many=False,
    icon="edit",
)
DELETE = Verb(
    name="delete",
    label="Delete",
    permission="runners.manage_secret",
    perform=_delete,
    explain="Queued runs that name it fail, with the reason, when their turn comes. It cannot be brought back.",
    danger=True,
    removes=True,
    icon="delete",
)


@admin.register(Secret)
class SecretAdmin(ReadOnlyAdmin):
    """Secrets of tenants, by name."""

    verbs = (SET, CHANGE, DELETE)
    list_display = ("name", "owner", "updated", "updated_by", "created")
    list_filter = (("tenant", AutocompleteFilter),)
    list_select_related = ("tenant",)
    search_fields = ("name__startswith",)
    ordering = ("-id",)
    fields = (("name", "owner"), ("updated", "updated_by"), "created")
    empty_list_hint = "No secret yet. Tenants set theirs with: wharfinger secret set NAME"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Secret]:
        """Without the values, which no page needs."""
        queryset: QuerySet[Secret] = super().get_queryset(request)
        return queryset.defer("value", "previous")

    @admin.display(description="tenant", ordering="tenant__slug")
    def owner(self, secret: Secret) -> SafeString:
        return render.link("admin:admission_tenant_change", secret.tenant_id, secret.tenant.slug)

    @admin.display(description="changed (UTC)", ordering="updated_at")
    def updated(self, secret: Secret) -> SafeString:
        return render.moment(secret.updated_at)

    @admin.display(description="set first (UTC)", ordering="created_at")
    def created(self, secret: Secret) -> SafeString:
        return render.moment(secret.created_at)
