"""Paths of replicas and their leader, below /api/v1/."""

from __future__ import annotations

from django.urls import path

from recovery.api.intents import IntentsView, RetryIntentView
from recovery.api.leases import LeasesView, RunLoopView, StepDownView
from recovery.api.recovery import RecoveryDebtsView, RecoveryLogView, RecoveryView, RetryDebtView
from recovery.api.replicas import ReplicaDrainView, ReplicaResumeView, ReplicasView

urlpatterns = [
    path("replicas", ReplicasView.as_view(), name="replicas"),
    path("replicas/<id:replica>/drain", ReplicaDrainView.as_view(), name="replica-drain"),
    path("replicas/<id:replica>/resume", ReplicaResumeView.as_view(), name="replica-resume"),
    path("recovery", RecoveryView.as_view(), name="recovery"),
    path("recovery/log", RecoveryLogView.as_view(), name="recovery-log"),
    path("recovery/debts", RecoveryDebtsView.as_view(), name="recovery-debts"),
    path("recovery/debts/<id:debt>/retry", RetryDebtView.as_view(), name="recovery-debt-retry"),
    path("intents", IntentsView.as_view(), name="intents"),
    path("intents/<id:intent>/retry", RetryIntentView.as_view(), name="intent-retry"),
    path("leases", LeasesView.as_view(), name="leases"),
    path("leases/<str:role>/step-down", StepDownView.as_view(), name="lease-step-down"),
    path("loops/<str:loop>/run", RunLoopView.as_view(), name="loop-run"),
]
