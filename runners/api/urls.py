"""Paths of runners and logs, below /api/v1/."""

from __future__ import annotations

from django.urls import path

from controlplane.api import converters  # noqa: F401 - registers <id:>
from runners.api import appending, fleet, protocol
from runners.api.artifacts import ArtifactUploadView, RunArtifactsView, RunArtifactView
from runners.api.logs import RunLogsView
from runners.api.own_mode import WishView
from runners.api.secrets import SecretsView, SecretView

urlpatterns = [
    path("runs/<id:run>/logs", RunLogsView.as_view(), name="run-logs"),
    path("runs/<id:run>/artifacts", RunArtifactsView.as_view(), name="run-artifacts"),
    path("runs/<id:run>/artifacts/<path:name>", RunArtifactView.as_view(), name="run-artifact"),
    path("secrets", SecretsView.as_view(), name="secrets"),
    path("secrets/<slug:name>", SecretView.as_view(), name="secret"),
    path("runners", fleet.RunnersView.as_view(), name="runners"),
    path("runners/enrol", fleet.EnrolView.as_view(), name="enrol"),
    path("runners/<id:runner>/pause", fleet.RunnerPauseView.as_view(), name="runner-pause"),
    path("runners/<id:runner>/drain", fleet.RunnerDrainView.as_view(), name="runner-drain"),
    path("runners/<id:runner>/resume", fleet.RunnerResumeView.as_view(), name="runner-resume"),
    path("runners/<id:runner>/revoke", fleet.RunnerRevokeView.as_view(), name="runner-revoke"),
    path("runners/<id:runner>/rotate", fleet.RunnerRotateView.as_view(), name="runner-rotate"),
    path("enrolment-tokens", fleet.EnrolmentTokensView.as_view(), name="enrolment-tokens"),
    path("enrolment-tokens/<id:token>", fleet.EnrolmentTokenView.as_view(), name="enrolment-token"),
    path("runner", protocol.SelfView.as_view(), name="runner-self"),
    path("runner/drain", protocol.DrainView.as_view(), name="runner-own-drain"),
    path("runner/token", protocol.RotateView.as_view(), name="runner-token"),
    path("runner/claims", protocol.ClaimsView.as_view(), name="runner-claims"),
    path("runner/wish", WishView.as_view(), name="runner-wish"),
    path("runner/holds", protocol.HoldsView.as_view(), name="runner-holds"),
    path("runner/starts", protocol.StartsView.as_view(), name="runner-starts"),
    path("runner/heartbeats", protocol.HeartbeatsView.as_view(), name="runner-heartbeats"),
    path("runner/results", protocol.ResultsView.as_view(), name="runner-results"),
    path("runner/runs/<id:run>/start", protocol.StartView.as_view(), name="runner-start"),
    path("runner/runs/<id:run>/heartbeat", protocol.HeartbeatView.as_view(), name="runner-heartbeat"),
    path("runner/runs/<id:run>/logs", appending.LogAppendView.as_view(), name="runner-log"),
    path("runner/runs/<id:run>/artifacts", ArtifactUploadView.as_view(), name="runner-artifact"),
    path("runner/runs/<id:run>/result", protocol.ResultView.as_view(), name="runner-result"),
]
