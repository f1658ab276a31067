"""Where every page and call lives."""

from __future__ import annotations

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path
from django.views.generic import RedirectView

from controlplane import health, metrics

# Here and not when Django starts: processes without pages need none of it. See `controlplane.admin_config`.
admin.autodiscover()

urlpatterns: list[URLPattern | URLResolver] = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("admin/", admin.site.urls),
    path("livez", health.livez),
    path("healthz", health.livez),
    path("readyz", health.readyz),
    path("metrics", metrics.metrics),
    path("api/", include("controlplane.api.urls")),
]
