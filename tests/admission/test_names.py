"""Finding runs by name reads an index, not the table (rules O1, O3)."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin as django_admin
from django.db import connection
from django.db.models import QuerySet

from admission.admin.runs import RunAdmin, keyed, named
from admission.api.filters import RunFilter
from admission.models import Run, Tenant
from tests import ledger

MANY = 3000

pytestmark = [pytest.mark.django_db, pytest.mark.rule("O1"), pytest.mark.rule("O3")]


@pytest.fixture
def tenant() -> Tenant:
    made = ledger.make_tenant()
    for _ in range(3):
        ledger.submit(made, MANY // 3)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE admission_run SET name = 'eval-' || id WHERE id % 3 > 0")
        cursor.execute("UPDATE admission_run SET idempotency_key = 'key-' || id")
        cursor.execute("ANALYZE admission_run")
    return made


def plan(found: QuerySet[Any, Any]) -> str:
    return found.explain()


def test_a_tenants_and_everyones_listing_by_name(tenant: Tenant) -> None:
    some = Run.objects.exclude(name="").latest("pk")
    for runs in (Run.objects.all(), tenant.runs.all()):
        found = RunFilter({"name": some.name}, queryset=runs.order_by("-id")).qs[:100]
        assert [run.pk for run in found] == [some.pk]
        assert "run_name" in plan(found), plan(found)
        assert "Seq Scan" not in plan(found)


def test_the_search_of_the_admin(tenant: Tenant, rf: Any) -> None:
    some = Run.objects.exclude(name="").latest("pk")
    nameless = Run.objects.filter(name="").latest("pk")
    admin = RunAdmin(Run, django_admin.site)
    for term, run in ((some.name, some), (f"key-{nameless.pk}", nameless)):
        found, _ = admin.get_search_results(rf.get("/"), Run.objects.order_by("-id"), term)
        assert [one.pk for one in found[:100]] == [run.pk]
        assert "Seq Scan on admission_run" not in plan(found[:100]), plan(found[:100])
    assert "run_name" in plan(named(some.name))
    assert "run_idempotency" in plan(keyed("key-1"))
    assert Run.objects.filter(pk__in=named("eval-")).count() == Run.objects.exclude(name="").count()
