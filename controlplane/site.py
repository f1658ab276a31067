"""The admin site: the fleet page as its index, and the live addresses beside the models' own."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.urls import URLPattern, URLResolver, path
from django.utils.cache import add_never_cache_headers

from controlplane.admin_base import AdminSite
from controlplane.fleet import kept, views


class FleetSite(AdminSite):
    """What `django.contrib.admin.site` is in this project."""

    site_title = "Wharfinger"
    site_header = "Wharfinger"
    index_title = "Fleet"
    index_template = "console/fleet.html"
    empty_value_display = "\N{EN DASH}"

    def get_urls(self) -> list[URLResolver | URLPattern]:
        """Each wrapped in `admin_view`: staff only, closed by default."""
        own: list[URLResolver | URLPattern] = [
            path("fleet/live/", self.admin_view(views.fleet_fragment), name="fleet_live"),
            path("runs/<int:run>/log/", self.admin_view(views.run_log), name="run_log"),
            path("runs/<int:run>/log/download/", self.admin_view(views.run_log_download), name="run_log_download"),
            path("runs/<int:run>/artifacts/<path:name>", self.admin_view(kept.run_artifact), name="run_artifact"),
            path("tenants/<int:tenant>/peak/", self.admin_view(views.tenant_peak), name="tenant_peak"),
        ]
        return [*own, *super().get_urls()]

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        """The fleet page, complete without JavaScript; with it, it refreshes itself."""
        response = super().index(request, {**views.fleet_context(request), **(extra_context or {})})
        add_never_cache_headers(response)
        return response
