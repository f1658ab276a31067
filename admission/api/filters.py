"""Filters of the lists, each with its explicit look-up."""

from __future__ import annotations

from typing import Any

import django_filters as filters
from django import forms
from django.db.models import CharField, Q, QuerySet, Value
from django.db.models.functions import Cast, Concat

from admission.models import Counter, Permit, Run
from admission.services.limits import BELOW_TENANT
from admission.states import RunState, Scope

MAX_ID = 2**63 - 1


class IdFilter(filters.Filter):
    """A row's id, within what the column can hold."""

    field_class = forms.IntegerField

    def __init__(self, field_name: str, **kwargs: Any) -> None:
        super().__init__(field_name, min_value=1, max_value=MAX_ID, **kwargs)


class RunFilter(filters.FilterSet):
    """Of runs. `state` may be given several times."""

    state = filters.MultipleChoiceFilter(choices=RunState.choices)
    batch = IdFilter("batch_id")
    batch_name = filters.CharFilter("batch__name", max_length=200)
    name = filters.CharFilter(method="by_name", max_length=200)
    kind = filters.ChoiceFilter(choices=[("task", "task"), ("session", "session")])
    tenant = filters.CharFilter("tenant__slug", max_length=60, help_text="Operators only: others see their own.")

    class Meta:
        model = Run
        fields: list[str] = []

    def by_name(self, queryset: QuerySet[Run], name: str, value: str) -> QuerySet[Run]:
        """That the name is not empty is said again: the index holds no others, and is used only where that is seen."""
        return queryset.filter(name=value).exclude(name="")


class LimitFilter(filters.FilterSet):
    """Of limits below the tenants'."""

    scope = filters.ChoiceFilter(choices=[(scope.value, scope.label) for scope in BELOW_TENANT])
    key = filters.CharFilter(method="by_key", max_length=200, help_text="The key or harness, whole.")
    tenant = filters.CharFilter("tenant__slug", max_length=60, help_text="Operators only: others see their own.")

    class Meta:
        model = Counter
        fields: list[str] = []

    def by_key(self, queryset: QuerySet[Counter], name: str, value: str) -> QuerySet[Counter]:
        """Keys are stored behind their tenant's number."""
        own = Concat(Cast("tenant_id", CharField()), Value(f":{value}"))
        return queryset.filter(Q(scope=Scope.HARNESS, key=value) | Q(scope=Scope.KEY, key=own))


class PermitFilter(filters.FilterSet):
    """Of permits."""

    scope = filters.ChoiceFilter(choices=Scope.choices)
    run = IdFilter("run_id")
    tenant = filters.CharFilter("tenant__slug", max_length=60, help_text="Operators only: others see their own.")

    class Meta:
        model = Permit
        fields: list[str] = []
