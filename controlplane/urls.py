"""Where every page and call lives."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path

from controlplane import health

urlpatterns: list[URLPattern | URLResolver] = [
    path("livez", health.livez),
    path("healthz", health.livez),
    path("readyz", health.readyz),
    path("api/", include("controlplane.api.urls")),
]
