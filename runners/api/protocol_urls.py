"""Paths of the runner protocol, below /api/v1/runner/."""

from __future__ import annotations

from django.urls import path

from controlplane.api import converters  # noqa: F401 - registers <id:>
from runners.api import appending, protocol
from runners.api.artifacts import ArtifactUploadView
from runners.api.own_mode import WishView

urlpatterns = [
    path("drain", protocol.DrainView.as_view(), name="runner-own-drain"),
    path("token", protocol.RotateView.as_view(), name="runner-token"),
    path("claims", protocol.ClaimsView.as_view(), name="runner-claims"),
    path("wish", WishView.as_view(), name="runner-wish"),
    path("holds", protocol.HoldsView.as_view(), name="runner-holds"),
    path("starts", protocol.StartsView.as_view(), name="runner-starts"),
    path("heartbeats", protocol.HeartbeatsView.as_view(), name="runner-heartbeats"),
    path("results", protocol.ResultsView.as_view(), name="runner-results"),
    path("runs/<id:run>/start", protocol.StartView.as_view(), name="runner-start"),
    path("runs/<id:run>/heartbeat", protocol.HeartbeatView.as_view(), name="runner-heartbeat"),
    path("runs/<id:run>/logs", appending.LogAppendView.as_view(), name="runner-log"),
    path("runs/<id:run>/artifacts", ArtifactUploadView.as_view(), name="runner-artifact"),
    path("runs/<id:run>/result", protocol.ResultView.as_view(), name="runner-result"),
]
