"""Leases, terms, fires of loops, and effects that leave the database.

Rows are written by `leadership` itself only, through the statements in `leadership.sql`. Each was proved against the
model in the contract's models/leader.pml; the invariants are in README.md.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from controlplane.core.loops import Gate


class TermEnding(models.TextChoices):
    """Why a term ended."""

    EXPIRED = "expired", "lease ran out"
    RESIGNED = "resigned", "handed back at shutdown"
    STEP_DOWN = "step_down", "stepped down for an operator"


class FireState(models.TextChoices):
    """Of one execution of a loop."""

    UNDONE = "undone", "waiting or running"
    DONE = "done", "done"
    FAILED = "failed", "failed"


class Lease(models.Model):
    """Who leads. Invariant: `term` grows whenever the lease is won, and only then.

    (role, term) is unique so that it is a key: `FOR KEY SHARE` on the row then conflicts with a takeover, which
    changes the term, and with nothing else. A renewal must not name `term` in its SET, or it would wait for every
    sweep.
    """

    role = models.CharField(max_length=40, unique=True)
    term = models.BigIntegerField()
    holder = models.CharField(max_length=100, blank=True, help_text="Incarnation of the holder; empty: free.")
    holder_name = models.CharField(max_length=200, blank=True)
    acquired_at = models.DateTimeField()
    renewed_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    step_down_at = models.DateTimeField(null=True, blank=True, help_text="An operator asked this term to end.")
    step_down_by = models.CharField(max_length=200, blank=True, db_default="")
    step_down_reason = models.TextField(blank=True, db_default="")

    class Meta:
        ordering = ("role",)
        permissions = (("step_down", "Can ask the leader to step down"),)
        constraints = (models.UniqueConstraint(fields=("role", "term"), name="lease_role_term"),)

    def __str__(self) -> str:
        return f"{self.role}, term {self.term}"


class Term(models.Model):
    """The history of a lease: one row for each term."""

    role = models.CharField(max_length=40)
    term = models.BigIntegerField()
    holder = models.CharField(max_length=100)
    holder_name = models.CharField(max_length=200)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_because = models.CharField(max_length=12, choices=TermEnding.choices, blank=True, db_default="")
    note = models.TextField(blank=True, db_default="", help_text="Who asked it to end, and why.")

    class Meta:
        ordering = ("-started_at",)
        constraints = (models.UniqueConstraint(fields=("role", "term"), name="term_once"),)
        indexes = (models.Index(fields=("-started_at",), name="term_started"),)

    def __str__(self) -> str:
        return f"{self.role}, term {self.term} of {self.holder_name}"


class Fire(models.Model):
    """One due time of one gated loop (rules L6, L7, L11).

    Unique (loop, fire_at): a due time is executed at most once. At most one fire of a loop is undone: it never
    overlaps itself. `term` is the leader's that sent it; only a larger one takes it over, and only its own term's
    transaction can mark it done.
    """

    loop = models.CharField(max_length=60)
    fire_at = models.DateTimeField()
    term = models.BigIntegerField()
    state = models.CharField(max_length=8, choices=FireState.choices, db_default="undone")
    asked_by = models.CharField(max_length=200, blank=True, db_default="", help_text="An operator; empty: its time.")
    enqueued_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    progress_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    worker = models.CharField(max_length=200, blank=True, db_default="", help_text="Where it ran.")
    result = models.JSONField(null=True, blank=True)
    error = models.TextField(blank=True, db_default="")

    class Meta:
        ordering = ("-fire_at",)
        permissions = (("run_loop", "Can run a loop now"),)
        constraints = (
            models.UniqueConstraint(fields=("loop", "fire_at"), name="fire_once"),
            models.UniqueConstraint(fields=("loop",), name="fire_one_undone", condition=Q(state="undone")),
        )
        indexes = (models.Index(fields=("state", "finished_at"), name="fire_state_finished"),)

    def __str__(self) -> str:
        return f"{self.loop} at {self.fire_at:%H:%M:%S}"


class LoopSeen(models.Model):
    """A loop as the running code declares it, and (local loops) its last run in one process.

    `place` is empty on the declaration's row, which every replica writes at its start: operators and web processes see
    the loops of the fleet, not those that their own code happens to know.
    """

    loop = models.CharField(max_length=60)
    place = models.CharField(max_length=200, blank=True, db_default="")
    gate = models.CharField(max_length=8, choices=[(g.value, g.value) for g in Gate])
    seconds = models.FloatField()
    why = models.TextField(blank=True)
    last_at = models.DateTimeField(null=True, blank=True)
    last_seconds = models.FloatField(null=True, blank=True)
    result = models.JSONField(null=True, blank=True)
    error = models.TextField(blank=True, db_default="")

    class Meta:
        ordering = ("loop", "place")
        verbose_name = "loop"
        constraints = (models.UniqueConstraint(fields=("loop", "place"), name="loop_place"),)

    def __str__(self) -> str:
        return f"{self.loop} on {self.place}" if self.place else self.loop


class Intent(models.Model):
    """An effect outside the database (mail), written in the transaction that decided it, done at least once after it.

    Unique (kind, key): however often and by however many it is decided, it is one effect. Whoever delivers claims the
    row by moving `next_at` forward; a deliverer that dies is succeeded when that time comes.
    """

    kind = models.CharField(max_length=40)
    key = models.CharField(max_length=200)
    payload = models.JSONField()
    created_at = models.DateTimeField(db_default=Now())
    next_at = models.DateTimeField(db_default=Now())
    tries = models.IntegerField(db_default=0)
    done_at = models.DateTimeField(null=True, blank=True)
    dead_at = models.DateTimeField(null=True, blank=True, help_text="Given up after too many tries.")
    error = models.TextField(blank=True, db_default="")

    class Meta:
        ordering = ("-id",)
        permissions = (("retry_intent", "Can retry an effect that was given up"),)
        constraints = (models.UniqueConstraint(fields=("kind", "key"), name="intent_once"),)
        indexes = (
            models.Index(
                fields=("next_at",), name="intent_pending", condition=Q(done_at__isnull=True, dead_at__isnull=True)
            ),
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"
