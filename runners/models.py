"""Runners, their credentials, the answers of their claims, and the logs of attempts."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from admission.models import Run, Tenant


class EnrolmentToken(models.Model):
    """Short-lived right to enrol runners; stored as a hash, shown once."""

    tenant = models.ForeignKey(Tenant, null=True, blank=True, on_delete=models.CASCADE, help_text="Empty: shared.")
    name = models.CharField(max_length=100, blank=True)
    shown = models.CharField(max_length=20, editable=False)
    hash = models.BinaryField(max_length=32, unique=True, editable=False)
    trust_labels = models.JSONField(default=dict, blank=True, help_text="Labels the server gives; a runner cannot.")
    uses_left = models.PositiveIntegerField(default=1)
    expires_at = models.DateTimeField()
    runner = models.ForeignKey(
        "Runner", null=True, blank=True, on_delete=models.CASCADE, help_text="Whose machine comes back with it."
    )
    one_job = models.BooleanField(db_default=False, help_text="Its runners take one run and end.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    created_by = models.CharField(max_length=200, blank=True, editable=False)

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"{self.shown}… ({self.name})"


class Runner(models.Model):
    """A machine that executes runs over REST. As a driver, this is the row that admission proves alive.

    After a rotation `old_hash` opens too, until `old_until` or until the new token was used.
    """

    name = models.CharField(max_length=200)
    tenant = models.ForeignKey(Tenant, null=True, blank=True, on_delete=models.PROTECT, help_text="Empty: shared.")
    shown = models.CharField(max_length=20, editable=False)
    hash = models.BinaryField(max_length=32, unique=True, editable=False)
    old_hash = models.BinaryField(max_length=32, unique=True, null=True, editable=False)
    old_until = models.DateTimeField(null=True, blank=True, editable=False)
    rotated_at = models.DateTimeField(null=True, blank=True, editable=False)
    labels = models.JSONField(default=dict, blank=True)
    trust_labels = models.JSONField(default=dict, blank=True)
    executors = models.JSONField(default=list, blank=True)
    slots = models.IntegerField(default=1)
    version = models.CharField(max_length=40, blank=True)
    host = models.CharField(max_length=200, blank=True)
    enrolled_at = models.DateTimeField(db_default=Now(), editable=False)
    contact_at = models.DateTimeField(null=True, blank=True, editable=False)
    paused_at = models.DateTimeField(null=True, blank=True, editable=False)
    pause_note = models.TextField(blank=True)
    resume_at = models.DateTimeField(null=True, blank=True, editable=False)
    pause_own = models.BooleanField(
        db_default=False, editable=False, help_text="The machine itself asked for its pause."
    )
    one_job = models.BooleanField(db_default=False, editable=False)
    spent_at = models.DateTimeField(null=True, blank=True, editable=False, help_text="When it took its one run.")
    draining_at = models.DateTimeField(null=True, blank=True, editable=False)
    drain_own = models.BooleanField(db_default=False, editable=False, help_text="The machine itself asked to drain.")
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ("name", "id")
        permissions = (
            ("pause_runner", "Can pause, drain and resume a runner"),
            ("revoke_runner", "Can revoke a runner"),
            ("rotate_runner", "Can give a runner a new token"),
            ("enrol_runner", "Can issue enrolment tokens"),
        )
        indexes = (models.Index(fields=("resume_at",), name="runner_resume", condition=Q(resume_at__isnull=False)),)

    def __str__(self) -> str:
        return self.name


class ClaimRequest(models.Model):
    """The stored answer of one claim, by the caller's request id: a repeat gets the same one (rule Q4)."""

    runner = models.ForeignKey(Runner, on_delete=models.CASCADE, related_name="+")
    request_id = models.CharField(max_length=100)
    at = models.DateTimeField(db_default=Now(), db_index=True)
    runs = models.JSONField(default=list)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("runner", "request_id"), name="claim_request_id"),)

    def __str__(self) -> str:
        return self.request_id


class LogChunk(models.Model):
    """A piece of one attempt's output; chunks of an attempt follow each other without gap or overlap.

    Written only together with the attempt's `log_size`, whose predicate decides where the next one begins.
    """

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="+", db_index=False, db_constraint=False)
    attempt = models.IntegerField()
    start = models.BigIntegerField()
    data = models.BinaryField()
    at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("run", "attempt", "start")
        constraints = (
            models.UniqueConstraint(fields=("run", "attempt", "start"), name="logchunk_position"),
            models.CheckConstraint(condition=Q(start__gte=0), name="logchunk_start_not_negative"),
        )

    def __str__(self) -> str:
        return f"log of run {self.run_id} from byte {self.start}"


class LogEnd(models.Model):
    """Where the log of an attempt would end had all of it been delivered; what is stored may yet grow up to it."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="+", db_index=False, db_constraint=False)
    attempt = models.IntegerField()
    size = models.BigIntegerField()

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run", "attempt"), name="logend_attempt"),)

    def __str__(self) -> str:
        return f"end of the log of run {self.run_id}"


# Below: they are models of this app, kept in a module of their own.
from runners.kept_models import Artifact, Secret  # noqa: E402

__all__ = ["Artifact", "ClaimRequest", "EnrolmentToken", "LogChunk", "LogEnd", "Runner", "Secret"]
