"""Debts of recovery: what could not be decided yet, why, and when it is looked at again."""

# ruff: noqa: D102 - a column says what it is by its description

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib import admin
from django.contrib.admin import ModelAdmin, SimpleListFilter
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from controlplane.admin_base import ReadOnlyAdmin, render
from controlplane.admin_base.clock import SecondsSince
from controlplane.admin_base.verbs import Order, Outcome, Preview, Verb
from controlplane.core.errors import Conflict
from recovery.admin.log import OUTCOME_TONES
from recovery.admin.notices import HoldNotice
from recovery.models import RecoveryDebt
from recovery.services.debts import ESCALATE_AFTER, retry_debt


def _preview(debts: Sequence[Any], _: Mapping[str, Any]) -> Preview:
    return Preview([f"{debt}: attempt {debt.attempts} failed: {debt.reason}" for debt in debts])


def _retry(order: Order) -> Outcome:
    done = 0
    for debt in order.objects:
        try:
            retry_debt(debt.pk, actor=order.actor, reason=order.reason)
        except Conflict:
            continue  # paid between the page and its confirmation: nothing to look at any more, and it is counted so
        done += 1
    paid = len(order.objects) - done
    note = f" {paid} had been paid meanwhile." if paid else ""
    return Outcome(f"{done} will be looked at by the next pass.{note}", done)


RETRY = Verb(
    name="retry",
    label="Look at it now",
    permission="recovery.retry_debt",
    perform=_retry,
    explain="The next pass of a replica that can see its machine looks at it again, instead of at its own time.",
    preview=_preview,
    applies=lambda debt: debt.closed_at is None,
    icon="replay",
)


class StandingFilter(SimpleListFilter):
    """Open ones, escalated ones, paid ones."""

    title = "standing"
    parameter_name = "standing"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, str]]:
        """The three."""
        return [("open", "open"), ("escalated", "escalated"), ("paid", "paid")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """As chosen."""
        if self.value() == "open":
            return queryset.filter(closed_at__isnull=True)
        if self.value() == "escalated":
            return queryset.filter(closed_at__isnull=True, escalated_at__isnull=False)
        return queryset.filter(closed_at__isnull=False) if self.value() == "paid" else queryset


@admin.register(RecoveryDebt)
class RecoveryDebtAdmin(HoldNotice, ReadOnlyAdmin):
    """Each names a run under one epoch, and is paid only when that is over."""

    verbs = (RETRY,)
    list_display = ("number", "standing", "run", "replica_name", "attempts", "opened", "tried", "next_look", "reason")
    list_display_links = ("number",)
    list_filter = (StandingFilter,)
    search_fields = ("=run_id", "replica_name__startswith")
    search_help_text = "Run id, or the beginning of a replica's name"
    ordering = ("-id",)
    fields = (
        ("standing", "run", "epoch"),
        ("replica_name", "machine", "silent_at"),
        ("attempts", "opened", "tried", "next_look"),
        "reason",
        ("escalated_at", "closed_at"),
        "incarnation",
    )
    empty_list_hint = "Nothing is owed: whatever a dead replica held was decided when it was looked at."

    def get_queryset(self, request: HttpRequest) -> QuerySet[RecoveryDebt]:
        """With ages by the database's clock."""
        queryset: QuerySet[RecoveryDebt] = super().get_queryset(request)
        return queryset.annotate(
            open_seconds=SecondsSince("opened_at"),
            tried_seconds=SecondsSince("tried_at"),
            due_seconds=SecondsSince("next_at"),
        )

    @admin.display(description="debt", ordering="id")
    def number(self, debt: RecoveryDebt) -> str:
        return f"debt {debt.pk}"

    @admin.display(description="standing")
    def standing(self, debt: RecoveryDebt) -> SafeString:
        if debt.closed_at is not None:
            return render.badge(f"paid: {debt.closed_as.replace('_', ' ')}", OUTCOME_TONES.get(debt.closed_as, "mute"))
        if debt.escalated_at is not None:
            return render.badge("escalated", "bad", f"not decided after {ESCALATE_AFTER} attempts")
        return render.badge("open", "wait")

    @admin.display(description="run", ordering="run_id")
    def run(self, debt: RecoveryDebt) -> SafeString:
        return render.link("admin:admission_run_change", debt.run_id, f"run {debt.run_id}")

    @admin.display(description="open for", ordering="opened_at")
    def opened(self, debt: Any) -> SafeString:
        return render.age(debt.open_seconds, debt.opened_at)

    @admin.display(description="last look", ordering="tried_at")
    def tried(self, debt: Any) -> SafeString:
        return render.age(debt.tried_seconds, debt.tried_at)

    @admin.display(description="next look in", ordering="next_at")
    def next_look(self, debt: Any) -> SafeString:
        if debt.closed_at is not None:
            return render.EMPTY
        return render.countdown(-debt.due_seconds, warn_below=0)

    @admin.display(description="the dead incarnation")
    def incarnation(self, debt: RecoveryDebt) -> SafeString:
        return render.json_block(debt.dead)
