"""The audit log: append-only, written by services in the transaction of what they changed."""

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
    subject = models.CharField(max_length=200)
    reason = models.TextField(blank=True)
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)
    request_id = models.CharField(max_length=100, blank=True)

    class Meta:
        ordering = ("-id",)
        verbose_name = "audit entry"
        verbose_name_plural = "audit log"
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
