"""The recovery log, and who reconciles whom right now."""

# ruff: noqa: D102 - a column says what it is by its description

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from controlplane.admin_base import ReadOnlyAdmin, render
from controlplane.admin_base.clock import SecondsSince
from controlplane.admin_base.filters import fixed_values, indexed_values
from controlplane.core.conf import conf
from recovery.admin.notices import HoldNotice
from recovery.models import RecoveryAction, RecoveryClaim

OUTCOME_TONES = {
    "adopted": "good",
    "requeued": "good",
    "already_settled": "mute",
    "interrupted": "warn",
    "cancelled": "mute",
    "timed_out": "warn",
    "deferred": "wait",
    "escalated": "bad",
    "left_alone": "mute",
}


@admin.register(RecoveryClaim)
class RecoveryClaimAdmin(ReadOnlyAdmin):
    """Who reconciles which dead incarnation right now."""

    list_display = ("replica", "claimant", "claimed", "held_for")
    list_select_related = ("replica",)
    fields = ("replica", "claimant", "claimed", "held_for")
    empty_list_hint = "No dead replica is being reconciled."

    def get_queryset(self, request: HttpRequest) -> QuerySet[RecoveryClaim]:
        """With ages by the database's clock."""
        queryset: QuerySet[RecoveryClaim] = super().get_queryset(request)
        return queryset.annotate(age_seconds=SecondsSince("claimed_at"))

    @admin.display(description="claimed (UTC)", ordering="claimed_at")
    def claimed(self, claim: RecoveryClaim) -> SafeString:
        return render.moment(claim.claimed_at)

    @admin.display(description="age")
    def held_for(self, claim: Any) -> SafeString:
        return render.age(claim.age_seconds, claim.claimed_at, bad=conf().recovery_claim_ttl_seconds)


@admin.register(RecoveryAction)
class RecoveryActionAdmin(HoldNotice, ReadOnlyAdmin):
    """The recovery log: one row for everything it did, or deliberately left alone, and why."""

    list_display = ("when", "ago", "outcome_badge", "run", "replica_name", "by", "reason")
    list_display_links = ("when",)
    list_filter = (fixed_values("outcome", *OUTCOME_TONES), indexed_values("replica_name", "replica"))
    search_fields = ("=run_id", "replica_name__startswith")
    search_help_text = "Run id, or the beginning of a replica's name"
    ordering = ("-id",)
    fields = (("when", "outcome_badge"), ("run", "epoch"), ("replica_name", "by"), "reason")
    empty_list_hint = "Nothing had to be recovered yet. Kill a replica and look here a minute and a half later."

    def get_queryset(self, request: HttpRequest) -> QuerySet[RecoveryAction]:
        """With ages by the database's clock."""
        queryset: QuerySet[RecoveryAction] = super().get_queryset(request)
        return queryset.annotate(age_seconds=SecondsSince("at"))

    @admin.display(description="at (UTC)", ordering="id")
    def when(self, action: RecoveryAction) -> SafeString:
        return render.moment(action.at)

    @admin.display(description="age")
    def ago(self, action: Any) -> SafeString:
        return render.age(action.age_seconds, action.at)

    @admin.display(description="outcome", ordering="outcome")
    def outcome_badge(self, action: RecoveryAction) -> SafeString:
        return render.badge(action.outcome.replace("_", " "), OUTCOME_TONES.get(action.outcome, "mute"))

    @admin.display(description="run", ordering="run_id")
    def run(self, action: RecoveryAction) -> SafeString:
        if action.run_id is None:
            return render.EMPTY
        return render.link("admin:admission_run_change", action.run_id, f"run {action.run_id}")
