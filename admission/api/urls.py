"""Paths of the ledger, below /api/v1/."""

from __future__ import annotations

from django.urls import path

from admission.api.batches import BatchesView, BatchView
from admission.api.limits import LimitsView
from admission.api.permits import (
    PermitForceReleaseView,
    PermitRenewalsView,
    PermitRenewView,
    PermitsView,
    PermitView,
)
from admission.api.physical import PhysicalReconcileView, PhysicalView
from admission.api.quotas import QuotaView
from admission.api.runs import RunCancelView, RunRequeueView, RunsView, RunView
from admission.api.tenants import TenantPauseView, TenantResumeView, TenantsView, TenantView
from admission.api.tokens import TokensView, TokenView
from admission.api.why import RunWhyView
from controlplane.api import converters  # noqa: F401 - registers <id:> and <permit:>

urlpatterns = [
    path("runs", RunsView.as_view(), name="runs"),
    path("runs/<id:run>", RunView.as_view(), name="run"),
    path("runs/<id:run>/cancel", RunCancelView.as_view(), name="run-cancel"),
    path("runs/<id:run>/requeue", RunRequeueView.as_view(), name="run-requeue"),
    path("runs/<id:run>/why", RunWhyView.as_view(), name="run-why"),
    path("batches", BatchesView.as_view(), name="batches"),
    path("batches/<id:batch>", BatchView.as_view(), name="batch"),
    path("tenants", TenantsView.as_view(), name="tenants"),
    path("tenants/<slug:slug>", TenantView.as_view(), name="tenant"),
    path("tenants/<slug:slug>/pause", TenantPauseView.as_view(), name="tenant-pause"),
    path("tenants/<slug:slug>/resume", TenantResumeView.as_view(), name="tenant-resume"),
    path("tenants/<slug:slug>/quota", QuotaView.as_view(), name="quota"),
    path("tokens", TokensView.as_view(), name="tokens"),
    path("tokens/<id:token>", TokenView.as_view(), name="token"),
    path("limits", LimitsView.as_view(), name="limits"),
    path("physical", PhysicalView.as_view(), name="physical"),
    path("physical/reconcile", PhysicalReconcileView.as_view(), name="physical-reconcile"),
    path("permits", PermitsView.as_view(), name="permits"),
    path("permits/<permit:permit>", PermitView.as_view(), name="permit"),
    path("permits/<permit:permit>/renew", PermitRenewView.as_view(), name="permit-renew"),
    path("permits/<permit:permit>/force-release", PermitForceReleaseView.as_view(), name="permit-force-release"),
    # Not below permits/: any word there may be the id of a permit.
    path("permit-renewals", PermitRenewalsView.as_view(), name="permit-renewals"),
]
