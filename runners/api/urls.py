"""Paths of runners and logs, below /api/v1/."""

from __future__ import annotations

from django.urls import path

from controlplane.api import converters  # noqa: F401 - registers <id:>
from runners.api import fleet, protocol
from runners.api.artifacts import RunArtifactsView, RunArtifactView
from runners.api.logs import RunLogsView
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
]
