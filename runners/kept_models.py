"""What is kept for tenants: their secrets, and the artifacts of their runs."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from admission.models import Run, Tenant


class Secret(models.Model):
    """One secret of one tenant. The value is sealed (`runners.services.sealing`) and shown to nobody, ever.

    `previous` is what it was before the last change: runs that were given it may still print it, and the server masks
    it too.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    name = models.CharField(max_length=200)
    value = models.BinaryField(editable=False)
    previous = models.BinaryField(null=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_by = models.CharField(max_length=200, blank=True, editable=False)

    class Meta:
        ordering = ("tenant", "name")
        constraints = (models.UniqueConstraint(fields=("tenant", "name"), name="secret_name"),)
        permissions = (("manage_secret", "Can set and delete secrets of tenants"),)

    def __str__(self) -> str:
        return self.name


def doom(_collector: Any, _field: Any, artifacts: Any, using: str) -> None:
    """What becomes of the artifacts of a run that is deleted: in its transaction, the bytes afterwards."""
    artifacts.using(using).filter(doomed_at__isnull=True).update(doomed_at=Now())


class Artifact(models.Model):
    """One file that an attempt left. The row stands before its bytes are stored, and goes after they are gone.

    So nothing in the storage is without a row: `stored_at` null is an upload under way or broken off, `doomed_at` one
    that is to be deleted; the sweep finishes both. Readers see what is stored and not doomed.
    """

    # No constraint: the row outlives its run until the bytes are deleted.
    run = models.ForeignKey(Run, on_delete=doom, related_name="+", db_index=False, db_constraint=False)
    attempt = models.IntegerField()
    name = models.CharField(max_length=500)
    key = models.CharField(max_length=200, unique=True, help_text="Where the bytes are, in the storage.")
    size = models.BigIntegerField()
    sha256 = models.BinaryField(max_length=32)
    content_type = models.CharField(max_length=100)
    reserved_at = models.DateTimeField(db_default=Now())
    stored_at = models.DateTimeField(null=True, blank=True)
    doomed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("run", "attempt", "name")
        constraints = (
            models.UniqueConstraint(
                fields=("run", "attempt", "name"),
                condition=Q(doomed_at__isnull=True),
                name="artifact_name",
            ),
            models.CheckConstraint(condition=Q(size__gte=0), name="artifact_size_not_negative"),
        )
        indexes = (
            models.Index(fields=("reserved_at",), condition=Q(stored_at__isnull=True), name="artifact_open"),
            models.Index(fields=("doomed_at",), condition=Q(doomed_at__isnull=False), name="artifact_doomed"),
        )

    def __str__(self) -> str:
        return self.name
