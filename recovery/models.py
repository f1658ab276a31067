"""Replicas and what is done about dead ones."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class Replica(models.Model):
    """One incarnation of one replica: its heartbeat row and, as a driver, the row that admission proves alive.

    A declaration of death is final for the incarnation: a beat requires that there is none. The row goes last, when
    none of its runs is open any more.
    """

    name = models.CharField(max_length=200, help_text="Pinned identity; unique among living incarnations.")
    incarnation = models.UUIDField(unique=True)
    host = models.CharField(max_length=200)
    machine = models.CharField(max_length=200)
    boot_id = models.CharField(max_length=64)
    pid = models.IntegerField()
    pid_start = models.BigIntegerField()
    version = models.CharField(max_length=40, blank=True)
    executor = models.CharField(max_length=20)
    slots = models.IntegerField()
    memory_mib = models.IntegerField(default=0)
    cpu = models.FloatField(default=0)
    started_at = models.DateTimeField(db_default=Now())
    beat_at = models.DateTimeField(db_default=Now())
    draining_at = models.DateTimeField(null=True, blank=True)
    drain_note = models.TextField(blank=True)
    declared_dead_at = models.DateTimeField(null=True, blank=True)
    resumed_at = models.DateTimeField(
        null=True, blank=True, help_text="Its beats last came back then, after a third of the window or more."
    )
    gap_from = models.DateTimeField(
        null=True, blank=True, help_text="Its last beat before that; who was heard from then on disproves an outage."
    )
    held_until = models.DateTimeField(
        null=True, blank=True, help_text="Silent, but perhaps by an outage: not declared dead before this; once."
    )
    held_why = models.TextField(blank=True, db_default="")

    class Meta:
        ordering = ("name", "-id")
        permissions = (("drain_replica", "Can drain and resume a replica"),)
        indexes = (
            models.Index(fields=("name",), name="replica_name"),
            models.Index(fields=("beat_at",), name="replica_beat"),
        )
        constraints = (
            models.UniqueConstraint(
                fields=("name",), name="replica_one_living", condition=Q(declared_dead_at__isnull=True)
            ),
        )

    def __str__(self) -> str:
        return self.name


class RecoveryClaim(models.Model):
    """The exclusive right to reconcile one dead incarnation; put-if-absent, with a time to live."""

    replica = models.OneToOneField(Replica, on_delete=models.CASCADE, primary_key=True, db_constraint=True)
    claimant = models.CharField(max_length=200)
    claimed_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return f"claim on {self.replica_id} by {self.claimant}"


class Outcome(models.TextChoices):
    """What became of something that recovery looked at."""

    ADOPTED = "adopted", "adopted"
    ALREADY_SETTLED = "already_settled", "already settled"
    REQUEUED = "requeued", "requeued"
    INTERRUPTED = "interrupted", "interrupted"
    CANCELLED = "cancelled", "cancelled"
    TIMED_OUT = "timed_out", "timed out"
    DEFERRED = "deferred", "deferred"
    ESCALATED = "escalated", "escalated"
    LEFT_ALONE = "left_alone", "left alone"


class RecoveryAction(models.Model):
    """One thing recovery did, or deliberately left alone, and why. Written once, never changed."""

    at = models.DateTimeField(db_default=Now())
    by = models.CharField(max_length=200)
    replica_name = models.CharField(max_length=200)
    run_id = models.BigIntegerField(null=True, blank=True, db_index=True)
    epoch = models.BigIntegerField(null=True, blank=True, help_text="Under which the dead driver held it.")
    outcome = models.CharField(max_length=20, choices=Outcome.choices)
    reason = models.TextField(blank=True)

    class Meta:
        ordering = ("-id",)
        indexes = (
            models.Index(fields=("outcome", "-id"), name="action_outcome"),
            models.Index(fields=("replica_name", "-id"), name="action_replica"),
            models.Index(fields=("at",), name="action_at"),
        )

    def __str__(self) -> str:
        return f"{self.outcome}: {self.reason}"


class RecoveryDebt(models.Model):
    """A run of a dead replica that could not be decided when it was looked at: owed until it is (rule R9).

    It names (run, epoch) and is asked about again, ever more rarely, never not at all. It closes only when that epoch
    is over. The dead incarnation's row may be gone by then, so what is needed of it is kept here.
    """

    run_id = models.BigIntegerField()
    epoch = models.BigIntegerField()
    replica_name = models.CharField(max_length=200)
    machine = models.CharField(max_length=200)
    dead = models.JSONField(help_text="The dead incarnation, as it was.")
    silent_at = models.DateTimeField(help_text="Its last beat.")
    reason = models.TextField(help_text="Why it could not be decided when it was last looked at.")
    attempts = models.IntegerField(db_default=1)
    opened_at = models.DateTimeField(db_default=Now())
    tried_at = models.DateTimeField(db_default=Now())
    next_at = models.DateTimeField()
    escalated_at = models.DateTimeField(null=True, blank=True)
    closed_at = models.DateTimeField(null=True, blank=True)
    closed_as = models.CharField(max_length=20, choices=Outcome.choices, blank=True, db_default="")

    class Meta:
        ordering = ("-id",)
        permissions = (("retry_debt", "Can have a recovery debt looked at now"),)
        constraints = (
            models.UniqueConstraint(
                fields=("run_id", "epoch"), name="debt_one_open", condition=Q(closed_at__isnull=True)
            ),
        )
        indexes = (
            models.Index(fields=("next_at",), name="debt_due", condition=Q(closed_at__isnull=True)),
            models.Index(fields=("closed_at",), name="debt_closed", condition=Q(closed_at__isnull=False)),
        )

    def __str__(self) -> str:
        return f"run {self.run_id} of {self.replica_name}"
