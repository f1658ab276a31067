"""All of REST: paths of the apps under /api/v1/, the schema beside it."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path, re_path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerView

from controlplane.api.views import UnknownPath

v1: list[URLPattern | URLResolver] = [
    # First, and by one prefix: runners ask the most, and each pattern before theirs is tried at every request.
    path("runner/", include("runners.api.protocol_urls")),
    path("", include("admission.api.urls")),
    path("", include("runners.api.urls")),
    path("", include("recovery.api.urls")),
]

# The schema says nothing that the documentation does not: anyone may read it.
_open: dict[str, list[type]] = {"authentication_classes": [], "permission_classes": []}

urlpatterns: list[URLPattern | URLResolver] = [
    path("v1/", include(v1)),
    path("schema/", SpectacularAPIView.as_view(**_open), name="schema"),
    path("docs/", SpectacularSwaggerView.as_view(url_name="schema", **_open), name="swagger"),
    re_path(r"^", UnknownPath.as_view()),
]
