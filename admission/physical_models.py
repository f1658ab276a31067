"""What the processes of the fleet tell of their machines: probes, and the physical slots as they see them."""

from __future__ import annotations

from django.db import models

from admission.states import DriverKind


class Probe(models.Model):
    """What a driver's machine had in use at one time, as that driver sampled it (rule A19).

    One row per driver that samples, deleted when it leaves: nothing in use leaves no entry. Drivers on one machine
    find each other by `machine`. A row older than two ticks says nothing.
    """

    driver_kind = models.CharField(max_length=10, choices=DriverKind.choices)
    driver_id = models.BigIntegerField()
    machine = models.CharField(max_length=200)
    slots_used = models.IntegerField()
    memory_mib_used = models.IntegerField()
    cpu_used = models.FloatField(null=True)
    sampled_at = models.DateTimeField()

    class Meta:
        ordering = ("machine", "driver_kind", "driver_id")
        constraints = (models.UniqueConstraint(fields=("driver_kind", "driver_id"), name="probe_driver"),)
        indexes = (models.Index(fields=("machine", "-sampled_at"), name="probe_machine"),)

    def __str__(self) -> str:
        return f"{self.machine} by {self.driver_kind} {self.driver_id}"


class PhysicalReport(models.Model):
    """What one process of an instance found in its latest pass over the containers (rules P10, P15).

    One row per instance and process. The slots themselves are in Redis and nowhere else: nothing here frees, grants or
    limits anything.
    """

    instance = models.CharField(max_length=64, help_text="SHA-256 of the instance id, as in Redis keys and labels.")
    process = models.CharField(max_length=200)
    machine = models.CharField(max_length=200)
    limit = models.IntegerField()
    generation = models.BigIntegerField()
    containers_running = models.IntegerField(db_default=0)
    containers_created = models.IntegerField(db_default=0, help_text="Created and not started yet.")
    containers_other = models.IntegerField(db_default=0, help_text="Exited, paused, dead, being removed.")
    without_token = models.IntegerField(db_default=0, help_text="Containers that no holder stands for.")
    without_container = models.IntegerField(db_default=0, help_text="Registered holders whose container is not there.")
    took_seconds = models.FloatField(db_default=0)
    last_error = models.TextField(blank=True, db_default="")
    error_at = models.DateTimeField(null=True, blank=True)
    reconcile_seen = models.BigIntegerField(db_default=0, help_text="Number of the latest request that it answered.")
    reported_at = models.DateTimeField()

    class Meta:
        ordering = ("instance", "process")
        verbose_name = "physical report"
        verbose_name_plural = "physical slots"
        permissions = (("reconcile_physical", "Can ask for a pass over the physical slots now"),)
        constraints = (models.UniqueConstraint(fields=("instance", "process"), name="physicalreport_process"),)

    def __str__(self) -> str:
        return f"{self.process} on {self.machine}"


class PhysicalRequest(models.Model):
    """An operator's request that every process of an instance makes its pass now; its number grows with each."""

    instance = models.CharField(max_length=64, unique=True)
    number = models.BigIntegerField()
    asked_at = models.DateTimeField()
    asked_by = models.CharField(max_length=200)
    reason = models.TextField()

    def __str__(self) -> str:
        return f"request {self.number}"
