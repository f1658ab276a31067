"""Who leads, the history of terms, the loops with their runs, and effects outside the database."""

# ruff: noqa: D102 - a column says what it is by its description

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib import admin
from django.db.models import F, FloatField, Func, OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.safestring import SafeString

from controlplane.admin_base import ReadOnlyAdmin, render
from controlplane.admin_base.clock import SecondsSince
from controlplane.admin_base.verbs import Order, Outcome, Preview, Verb
from controlplane.core.conf import conf
from controlplane.core.loops import Gate
from leadership.models import Fire, FireState, Intent, Lease, LoopSeen, Term
from leadership.services.intents import retry_intent
from leadership.services.operating import run_now, step_down

STATE_TONES = {"done": "good", "failed": "bad", "undone": "run"}
ENDING_TONES = {"resigned": "good", "step_down": "ready", "expired": "warn"}


class SecondsBetween(Func):
    """Seconds from one column's time to another's."""

    arity = 2
    arg_joiner = " - "
    template = "extract(epoch FROM %(expressions)s)::float8"
    output_field = FloatField()


def _preview_step_down(leases: Sequence[Any], _: Mapping[str, Any]) -> Preview:
    settings = conf()
    lines = [
        f"{lease.holder_name or 'Nobody'} leads {lease.role} in term {lease.term}. It gives the lease back within "
        f"{settings.leader_tick_seconds:g} s; stuck, it is replaced in {max(lease.seconds_left, 0):.0f} s."
        for lease in leases
    ]
    return Preview(lines, standing={lease.pk: lease.term for lease in leases})


def _step_down(order: Order) -> Outcome:
    asked = order.each(lambda lease: step_down(lease.role, actor=order.actor, reason=order.reason))
    names = ", ".join(f"{a.holder_name} (term {a.term})" for a in asked)
    return Outcome(f"Asked to step down: {names}.", len(asked))


def _run_now(order: Order) -> Outcome:
    order.each(lambda loop: run_now(loop.loop, actor=order.actor, reason=order.reason))
    return Outcome(f"Sent: {', '.join(loop.loop for loop in order.objects)}. See its runs below.", len(order.objects))


def _retry(order: Order) -> Outcome:
    order.each(lambda intent: retry_intent(intent, actor=order.actor, reason=order.reason))
    return Outcome(f"{len(order.objects)} to be tried again.", len(order.objects))


STEP_DOWN = Verb(
    name="step-down",
    label="Step down",
    permission="leadership.step_down",
    perform=_step_down,
    explain="The leader ends its belief, hands the lease back, and leaves others the time to win it.",
    preview=_preview_step_down,
    applies=lambda lease: bool(lease.holder) and lease.step_down_at is None,
    icon="logout",
)
RUN_NOW = Verb(
    name="run-now",
    label="Run now",
    permission="leadership.run_loop",
    perform=_run_now,
    explain="One extra run under the term in force. Refused while one is waiting or running.",
    applies=lambda loop: loop.gate == Gate.LEADER,
    many=False,
    icon="play_arrow",
)
RETRY = Verb(
    name="retry",
    label="Try again",
    permission="leadership.retry_intent",
    perform=_retry,
    explain="The effect is tried again at once, and as often as a new one.",
    applies=lambda intent: intent.dead_at is not None,
    icon="replay",
)


@admin.register(Lease)
class LeaseAdmin(ReadOnlyAdmin):
    """Who leads now."""

    verbs = (STEP_DOWN,)
    list_display = ("role", "leader", "term", "left", "since", "asked")
    ordering = ("role",)
    fields = (("role", "term"), ("leader", "left"), ("since", "renewed_at"), "asked", "holder")
    empty_list_hint = "Nobody ever led. Start a replica: manage.py replica (or the whole fleet: manage.py up)."

    def get_queryset(self, request: HttpRequest) -> QuerySet[Lease]:
        """With what is left of the lease, by the database's clock."""
        queryset: QuerySet[Lease] = super().get_queryset(request)
        return queryset.annotate(seconds_left=-SecondsSince("expires_at"), led_seconds=SecondsSince("acquired_at"))

    @admin.display(description="leader", ordering="holder_name")
    def leader(self, lease: Any) -> SafeString | str:
        if not lease.holder or lease.seconds_left <= 0:
            return render.badge("nobody", "bad", "no sweep runs until somebody leads")
        return str(lease.holder_name)

    @admin.display(description="lease left")
    def left(self, lease: Any) -> SafeString:
        return render.countdown(lease.seconds_left, warn_below=conf().leader_lease_seconds / 3)

    @admin.display(description="leads for", ordering="acquired_at")
    def since(self, lease: Any) -> SafeString:
        return render.age(lease.led_seconds, lease.acquired_at)

    @admin.display(description="asked to step down")
    def asked(self, lease: Lease) -> SafeString | str:
        return f"{lease.step_down_by}: {lease.step_down_reason}" if lease.step_down_at else render.EMPTY


@admin.register(Term)
class TermAdmin(ReadOnlyAdmin):
    """Who led when, and why each term ended."""

    list_display = ("term", "role", "holder_name", "started", "length", "ending", "note")
    list_filter = ("role", "ended_because")
    search_fields = ("holder_name__startswith",)
    ordering = ("-started_at",)
    fields = (("role", "term"), ("holder_name", "holder"), ("started", "ended_at", "length"), ("ending", "note"))
    empty_list_hint = "Nobody ever led."

    def get_queryset(self, request: HttpRequest) -> QuerySet[Term]:
        """With its length."""
        queryset: QuerySet[Term] = super().get_queryset(request)
        return queryset.annotate(seconds=SecondsBetween(F("ended_at"), F("started_at")))

    @admin.display(description="from (UTC)", ordering="started_at")
    def started(self, term: Term) -> SafeString:
        return render.moment(term.started_at)

    @admin.display(description="for")
    def length(self, term: Any) -> SafeString | str:
        return render.EMPTY if term.seconds is None else render.span(term.seconds)

    @admin.display(description="ended because", ordering="ended_because")
    def ending(self, term: Term) -> SafeString:
        if term.ended_at is None:
            return render.badge("in force", "run")
        return render.badge(term.get_ended_because_display(), ENDING_TONES.get(term.ended_because, "mute"))


@admin.register(LoopSeen)
class LoopAdmin(ReadOnlyAdmin):
    """The recurring work of the fleet: where it may run, why, and what became of it last."""

    verbs = (RUN_NOW,)
    list_display = ("loop", "gate_badge", "every", "state", "last", "took", "ran_at", "outcome", "why")
    list_filter = ("gate",)
    ordering = ("gate", "loop")
    fields = (
        ("loop", "gate_badge", "every"),
        ("state", "last", "took"),
        ("ran_at", "outcome"),
        "trouble",
        "why",
        "runs",
    )
    empty_list_hint = "Loops are declared by the first replica that starts: manage.py replica."

    def get_queryset(self, request: HttpRequest) -> QuerySet[LoopSeen]:
        """One row a loop, with its newest run: of the fleet where it is gated, else of any process."""
        queryset: QuerySet[LoopSeen] = super().get_queryset(request).filter(place="")
        fires = Fire.objects.filter(loop=OuterRef("loop")).order_by("-fire_at")
        own = LoopSeen.objects.filter(loop=OuterRef("loop")).exclude(place="")
        own = own.order_by(F("last_at").desc(nulls_last=True))
        return queryset.annotate(
            fire_state=Subquery(fires.values("state")[:1]),
            fire_last=Subquery(fires.values("fire_at")[:1]),
            fire_age=Subquery(fires.annotate(age=SecondsSince("fire_at")).values("age")[:1]),
            fire_took=Subquery(fires.annotate(t=SecondsBetween(F("finished_at"), F("started_at"))).values("t")[:1]),
            fire_worker=Subquery(fires.values("worker")[:1]),
            fire_result=Subquery(fires.values("result")[:1]),
            fire_error=Subquery(fires.values("error")[:1]),
            own_last=Subquery(own.values("last_at")[:1]),
            own_age=Subquery(own.annotate(age=SecondsSince("last_at")).values("age")[:1]),
            own_took=Subquery(own.values("last_seconds")[:1]),
            own_place=Subquery(own.values("place")[:1]),
            own_result=Subquery(own.values("result")[:1]),
            own_error=Subquery(own.values("error")[:1]),
        )

    @admin.display(description="gate", ordering="gate")
    def gate_badge(self, loop: LoopSeen) -> SafeString:
        gated = loop.gate == Gate.LEADER
        return render.badge("once in the fleet" if gated else "each process", "ready" if gated else "mute")

    @admin.display(description="every", ordering="seconds")
    def every(self, loop: LoopSeen) -> str:
        return f"{loop.seconds:g} s"

    @admin.display(description="state")
    def state(self, loop: Any) -> SafeString:
        if loop.gate == Gate.LEADER:
            return _fire_badge(loop.fire_state) if loop.fire_state else render.EMPTY
        if loop.own_last is None:
            return render.EMPTY
        return render.badge("failed", "bad") if loop.own_error else render.badge("done", "good")

    @admin.display(description="last run")
    def last(self, loop: Any) -> SafeString:
        if loop.gate == Gate.LEADER:
            return render.age(loop.fire_age, loop.fire_last)
        return render.age(loop.own_age, loop.own_last)

    @admin.display(description="took")
    def took(self, loop: Any) -> SafeString | str:
        return _seconds(loop.fire_took if loop.gate == Gate.LEADER else loop.own_took)

    @admin.display(description="where")
    def ran_at(self, loop: Any) -> SafeString | str:
        return (loop.fire_worker if loop.gate == Gate.LEADER else loop.own_place) or render.EMPTY

    @admin.display(description="result")
    def outcome(self, loop: Any) -> SafeString | str:
        return _result(loop.fire_result if loop.gate == Gate.LEADER else loop.own_result)

    @admin.display(description="error")
    def trouble(self, loop: Any) -> SafeString | str:
        return (loop.fire_error if loop.gate == Gate.LEADER else loop.own_error) or render.EMPTY

    @admin.display(description="runs")
    def runs(self, loop: LoopSeen) -> SafeString:
        return render.list_link("admin:leadership_fire_changelist", "all runs", loop__exact=loop.loop)


def _fire_badge(state: str) -> SafeString:
    return render.badge(FireState(state).label, STATE_TONES.get(state, "mute"))


def _seconds(value: float | None) -> SafeString | str:
    return render.EMPTY if value is None else f"{value:.2f} s"


def _result(value: Mapping[str, Any] | None) -> SafeString | str:
    return ", ".join(f"{name} {count}" for name, count in (value or {}).items()) or render.EMPTY


@admin.register(Fire)
class FireAdmin(ReadOnlyAdmin):
    """Every execution of a gated loop."""

    list_display = ("due", "loop", "state_badge", "late", "took", "term", "where", "outcome", "asked_by")
    list_filter = ("state", "loop")
    ordering = ("-fire_at",)
    fields = (
        ("loop", "due", "state_badge"),
        ("term", "asked_by", "where"),
        ("enqueued_at", "started_at", "progress_at", "finished_at"),
        "outcome",
        "error",
    )
    empty_list_hint = "Nothing was due yet, or nobody leads."

    def get_queryset(self, request: HttpRequest) -> QuerySet[Fire]:
        """With how late it began and how long it took."""
        queryset: QuerySet[Fire] = super().get_queryset(request)
        return queryset.annotate(
            late_seconds=SecondsBetween(F("started_at"), F("fire_at")),
            took_seconds=SecondsBetween(F("finished_at"), F("started_at")),
        )

    @admin.display(description="due (UTC)", ordering="fire_at")
    def due(self, fire: Fire) -> SafeString:
        return render.moment(fire.fire_at)

    @admin.display(description="state", ordering="state")
    def state_badge(self, fire: Fire) -> SafeString:
        return _fire_badge(fire.state)

    @admin.display(description="late by")
    def late(self, fire: Any) -> SafeString | str:
        return _seconds(fire.late_seconds)

    @admin.display(description="took")
    def took(self, fire: Any) -> SafeString | str:
        return _seconds(fire.took_seconds)

    @admin.display(description="where", ordering="worker")
    def where(self, fire: Fire) -> SafeString | str:
        return fire.worker or render.EMPTY

    @admin.display(description="result")
    def outcome(self, fire: Fire) -> SafeString | str:
        return _result(fire.result)


@admin.register(Intent)
class IntentAdmin(ReadOnlyAdmin):
    """Effects outside the database: decided once, done at least once."""

    verbs = (RETRY,)
    list_display = ("kind", "key", "state", "created", "tries", "error")
    list_filter = ("kind",)
    search_fields = ("key__startswith",)
    ordering = ("-id",)
    fields = (("kind", "key", "state"), ("created", "next_at", "tries"), ("done_at", "dead_at"), "error", "body")
    empty_list_hint = "Nobody had to be told of anything."

    @admin.display(description="state")
    def state(self, intent: Intent) -> SafeString:
        if intent.done_at:
            return render.badge("done", "good")
        return render.badge("given up", "bad") if intent.dead_at else render.badge("to do", "wait")

    @admin.display(description="decided (UTC)", ordering="created_at")
    def created(self, intent: Intent) -> SafeString:
        return render.moment(intent.created_at)

    @admin.display(description="payload")
    def body(self, intent: Intent) -> SafeString:
        return render.json_block(intent.payload)
