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


class RecoveryAction(models.Model):
    """One thing recovery did, or deliberately left alone, and why."""

    at = models.DateTimeField(db_default=Now())
    by = models.CharField(max_length=200)
    replica_name = models.CharField(max_length=200)
    run_id = models.BigIntegerField(null=True, blank=True, db_index=True)
    epoch = models.BigIntegerField(null=True, blank=True)
    outcome = models.CharField(max_length=20)
    reason = models.TextField(blank=True)

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"{self.outcome}: {self.reason}"
