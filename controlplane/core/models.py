"""What every app may need: the audit log, samples for charts, holds after an outage."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models
from django.db.models.functions import Now


class AuditEntry(models.Model):
    """One thing an operator, a tenant or the system did.

    Invariant: never updated and never deleted by the product; the database refuses both (trigger in the migration).
    `actor` is text and `user` may become null, so deleting an account deletes no history.
    """

    at = models.DateTimeField(db_default=Now(), editable=False)
    actor = models.CharField(max_length=200)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.DO_NOTHING, db_constraint=False
    )
    verb = models.CharField(max_length=60)
    subject_type = models.CharField(max_length=40)
    # The longest is a permit's holder, or a counter's scope and key: what cannot be written down cannot be done.
    subject = models.CharField(max_length=400)
    reason = models.TextField(blank=True)
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)
    request_id = models.CharField(max_length=100, blank=True)

    class Meta:
        ordering = ("-id",)
        verbose_name = "audit entry"
        verbose_name_plural = "audit entries"
        indexes = (
            models.Index(fields=("subject_type", "subject", "-id"), name="audit_subject"),
            models.Index(fields=("verb", "-id"), name="audit_verb"),
            models.Index(fields=("actor", "-id"), name="audit_actor"),
        )

    def __str__(self) -> str:
        return f"{self.actor} {self.verb} {self.subject_type} {self.subject}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Insert only."""
        if self.pk:
            raise TypeError("audit entries are append-only")
        super().save(*args, **kwargs)


class Sample(models.Model):
    """One number at one time, for the charts. Written once a minute, deleted after a month."""

    at = models.DateTimeField()
    series = models.CharField(max_length=40)
    key = models.CharField(max_length=100, blank=True, db_default="")
    value = models.FloatField()

    class Meta:
        ordering = ("-at",)
        constraints = (models.UniqueConstraint(fields=("series", "key", "at"), name="sample_once"),)
        indexes = (models.Index(fields=("at",), name="sample_at"),)

    def __str__(self) -> str:
        return f"{self.series} {self.key} {self.value:g}"


class Hold(models.Model):
    """After an outage, what leases protect is left alone for a fixed time: its holders must be able to renew first.

    One row per pass that takes things from silent holders. `sign_at` is the last sign that renewing was possible;
    `taken_for` the sign after which the present (or last) hold was taken, so that one outage is one hold.
    """

    name = models.CharField(max_length=40, primary_key=True)
    sign_at = models.DateTimeField()
    taken_for = models.DateTimeField(null=True)
    until = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.name} until {self.until:%H:%M:%S}"
