"""Liveness and readiness. `/livez` asks nobody; `/readyz` is for whoever sends traffic here."""

from __future__ import annotations

from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache


@never_cache
def livez(_request: HttpRequest) -> HttpResponse:
    """This process can answer."""
    return HttpResponse("ok\n", content_type="text/plain")


@never_cache
def readyz(_request: HttpRequest) -> HttpResponse:
    """The database answers and holds the schema that this code expects."""
    checks = {"database": "ok", "migrations": "ok"}
    try:
        executor = MigrationExecutor(connection)
        if executor.migration_plan(executor.loader.graph.leaf_nodes()):
            checks["migrations"] = "not applied"
    except DatabaseError as error:
        checks["database"] = checks["migrations"] = type(error).__name__
    ready = all(value == "ok" for value in checks.values())
    return JsonResponse({"ready": ready, "checks": checks}, status=200 if ready else 503)
