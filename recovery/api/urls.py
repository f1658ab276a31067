"""Paths of replicas, below /api/v1/."""

from __future__ import annotations

from django.urls import path

from recovery.api.replicas import ReplicasView

urlpatterns = [
    path("replicas", ReplicasView.as_view(), name="replicas"),
]
