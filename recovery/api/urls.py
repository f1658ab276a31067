"""Paths of replicas and their leader, below /api/v1/."""

from __future__ import annotations

from django.urls import path

from recovery.api.leases import LeasesView, RunLoopView, StepDownView
from recovery.api.replicas import ReplicasView

urlpatterns = [
    path("replicas", ReplicasView.as_view(), name="replicas"),
    path("leases", LeasesView.as_view(), name="leases"),
    path("leases/<str:role>/step-down", StepDownView.as_view(), name="lease-step-down"),
    path("loops/<str:loop>/run", RunLoopView.as_view(), name="loop-run"),
]
