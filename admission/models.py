"""The ledger: tenants, runs, attempts; and the limits: counters and permits.

Rows are written by `admission.services` and `admission.engine` only, through the statements in `admission.sql`.
Saving a model writes every column, so no service saves a Run or a Counter.
"""

from __future__ import annotations

from decimal import Decimal

from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import F, Q, Value
from django.db.models.functions import Now

from admission.physical_models import PhysicalReport, PhysicalRequest, Probe
from admission.states import HOLDING, DriverKind, RunState, Scope

__all__ = [
    "ApiToken",
    "Attempt",
    "Batch",
    "Counter",
    "Permit",
    "PhysicalReport",
    "PhysicalRequest",
    "Probe",
    "Run",
    "Tenant",
]


class Tenant(models.Model):
    """Who submits work. `has_quota` decides, under the row's lock, whether admission needs permits (rules A4, A14)."""

    slug = models.SlugField(max_length=60, unique=True, help_text="Short name in URLs and tokens; cannot be changed.")
    name = models.CharField(max_length=200, blank=True)
    weight = models.DecimalField(
        max_digits=8,
        decimal_places=3,
        default=Decimal(1),
        validators=[MinValueValidator(Decimal("0.001"))],
        help_text="Share of the fleet relative to other tenants with work waiting.",
    )
    has_quota = models.BooleanField(default=False, editable=False)
    paused_at = models.DateTimeField(null=True, blank=True, editable=False)
    pause_note = models.TextField(blank=True, editable=False)
    resume_at = models.DateTimeField(null=True, blank=True, editable=False)
    deleting_at = models.DateTimeField(null=True, blank=True, editable=False)
    queue_depth = models.PositiveIntegerField(
        null=True, blank=True, help_text="Queued runs at most; empty: the fleet's default."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("slug",)
        permissions = (
            ("set_quota", "Can set, change and remove a tenant's quota"),
            ("pause_tenant", "Can pause and resume a tenant"),
        )
        constraints = (models.CheckConstraint(condition=Q(weight__gt=0), name="tenant_weight_positive"),)
        indexes = (
            models.Index(fields=("resume_at",), name="tenant_resume", condition=Q(resume_at__isnull=False)),
            models.Index(fields=("deleting_at",), name="tenant_deleting", condition=Q(deleting_at__isnull=False)),
        )

    def __str__(self) -> str:
        return self.slug


class ApiToken(models.Model):
    """A bearer credential of a tenant, or (tenant null) of an operator who acts with the user's permissions."""

    tenant = models.ForeignKey(Tenant, null=True, blank=True, on_delete=models.CASCADE, related_name="tokens")
    user = models.ForeignKey("auth.User", null=True, blank=True, on_delete=models.CASCADE)
    name = models.CharField(max_length=100)
    shown = models.CharField(max_length=20, editable=False)
    hash = models.BinaryField(max_length=32, unique=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ("-id",)
        verbose_name = "API token"
        constraints = (
            models.CheckConstraint(
                condition=Q(tenant__isnull=False, user__isnull=True) | Q(tenant__isnull=True, user__isnull=False),
                name="apitoken_tenant_or_user",
            ),
        )

    def __str__(self) -> str:
        return f"{self.shown}… ({self.name})"


class Batch(models.Model):
    """Runs submitted together under one name."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="batches")
    name = models.CharField(max_length=200)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("-id",)
        verbose_name_plural = "batches"
        constraints = (models.UniqueConstraint(fields=("tenant", "name"), name="batch_name"),)

    def __str__(self) -> str:
        return self.name


class Run(models.Model):
    """One piece of work. States and transitions: `admission.states`.

    Invariants, held by the database: an admitted or running run names its driver; every transition is in the table;
    the epoch never falls. Permits of the current attempt exist exactly while it is admitted or running, for each
    counter it needs (rule A8).
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="runs", db_index=False)
    batch = models.ForeignKey(
        Batch, null=True, blank=True, on_delete=models.PROTECT, related_name="runs", db_index=False
    )
    name = models.CharField(max_length=200, blank=True, db_default="")
    kind = models.CharField(max_length=20, null=True, blank=True, help_text="Empty means task.")  # noqa: DJ001
    state = models.CharField(max_length=20, choices=RunState.choices, db_default="queued")
    reason = models.CharField(max_length=60, blank=True, db_default="")
    detail = models.TextField(blank=True, db_default="")
    spec = models.JSONField()

    labels = models.JSONField(default=dict, db_default=Value({}, models.JSONField()))
    backend = models.CharField(max_length=20, blank=True, db_default="")
    harness = models.CharField(max_length=200, blank=True, db_default="")
    concurrency_key = models.CharField(max_length=200, blank=True, db_default="")
    weight = models.IntegerField(db_default=1)
    memory_mib = models.IntegerField(db_default=0)
    cpu = models.FloatField(db_default=0)
    priority = models.IntegerField(db_default=0)

    rank_at = models.DateTimeField(help_text="Queue order within the tenant: time of submission less 60 s a priority.")
    not_before = models.DateTimeField(null=True, blank=True)
    delayed = models.BooleanField(db_default=False, help_text="Waits for not_before; kept out of the queue's index.")
    queue_deadline = models.DateTimeField(null=True, blank=True)
    timeout_seconds = models.FloatField(db_default=3600)
    max_tries = models.IntegerField(db_default=3)
    retry_on_interrupt = models.BooleanField(db_default=True)
    retry_on_failure = models.BooleanField(db_default=False)
    backoff_seconds = models.FloatField(db_default=1)

    attempt = models.IntegerField(db_default=0, help_text="Number of the latest admission.")
    epoch = models.BigIntegerField(db_default=0, help_text="Grows at every admission, requeue and takeover.")
    tries = models.IntegerField(db_default=0, help_text="Started attempts; these count against the retry limit.")
    unstarted = models.IntegerField(db_default=0, help_text="Admissions in a row that never started.")
    driver_kind = models.CharField(max_length=10, choices=DriverKind.choices, blank=True, db_default="")
    driver_id = models.BigIntegerField(null=True, blank=True)
    driver_incarnation = models.UUIDField(null=True, blank=True)
    driver_name = models.CharField(max_length=200, blank=True, db_default="")

    created_at = models.DateTimeField(db_default=Now())
    created_by = models.CharField(max_length=200, blank=True, db_default="")
    admitted_at = models.DateTimeField(null=True, blank=True)
    start_deadline = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    run_deadline = models.DateTimeField(null=True, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)

    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    cancel_ending = models.CharField(max_length=20, blank=True, db_default="")
    cancel_by = models.CharField(max_length=200, blank=True, db_default="")
    cancel_reason = models.TextField(blank=True, db_default="")
    cancel_seen_at = models.DateTimeField(null=True, blank=True)
    cancel_stopped_at = models.DateTimeField(null=True, blank=True)
    cancel_confirmed_at = models.DateTimeField(null=True, blank=True)

    idempotency_key = models.CharField(max_length=200, null=True, blank=True)  # noqa: DJ001 - null: not in the index
    request_hash = models.CharField(max_length=64, blank=True, db_default="")

    class Meta:
        ordering = ("-id",)
        permissions = (
            ("cancel_run", "Can cancel a run"),
            ("requeue_run", "Can take a run from its driver"),
            ("submit_run", "Can submit a run"),
        )
        constraints = (
            models.CheckConstraint(condition=Q(state__in=RunState.values), name="run_state_known"),
            models.CheckConstraint(
                condition=~Q(state__in=HOLDING)
                | Q(driver_kind__in=DriverKind.values, driver_id__isnull=False, attempt__gte=1),
                name="run_holding_has_driver",
            ),
            models.CheckConstraint(condition=Q(weight__gte=1), name="run_weight_positive"),
            models.CheckConstraint(condition=Q(epoch__gte=0), name="run_epoch_not_negative"),
            models.UniqueConstraint(
                fields=("tenant", "idempotency_key"),
                name="run_idempotency",
                condition=Q(idempotency_key__isnull=False),
            ),
        )
        indexes = (
            # The queue: one index scan per tenant, in order, without the runs that wait for their time.
            models.Index(
                fields=("tenant", "rank_at", "id"), name="run_queue", condition=Q(state="queued", delayed=False)
            ),
            models.Index(fields=("not_before",), name="run_delayed", condition=Q(state="queued", delayed=True)),
            models.Index(
                fields=("queue_deadline",),
                name="run_queue_deadline",
                condition=Q(state="queued", queue_deadline__isnull=False),
            ),
            models.Index(fields=("start_deadline",), name="run_start_deadline", condition=Q(state="admitted")),
            models.Index(fields=("run_deadline",), name="run_run_deadline", condition=Q(state="running")),
            models.Index(
                fields=("lease_until",),
                name="run_lease",
                condition=Q(state__in=HOLDING, lease_until__isnull=False),
            ),
            models.Index(fields=("driver_kind", "driver_id", "id"), name="run_driver", condition=Q(state__in=HOLDING)),
            models.Index(fields=("tenant", "-id"), name="run_tenant"),
            models.Index(fields=("state", "-id"), name="run_state"),
            models.Index(fields=("tenant", "state", "-id"), name="run_tenant_state"),
            # Listings by name, and the search by a name's beginning. Submits without a name pay nothing.
            models.Index(
                fields=("name", "tenant", "-id"),
                name="run_name",
                condition=~Q(name=""),
                opclasses=("varchar_pattern_ops", "int8_ops", "int8_ops"),
            ),
            models.Index(fields=("batch", "id"), name="run_batch", condition=Q(batch__isnull=False)),
            models.Index(fields=("-finished_at",), name="run_finished", condition=Q(finished_at__isnull=False)),
        )

    def __str__(self) -> str:
        return f"run {self.pk}"


class Attempt(models.Model):
    """One admission of a run; its number is never used again. The exact history of who held what, when (rule A30)."""

    # No foreign-key triggers here and on permits: the admitting statement holds the run's and the tenant's row locks,
    # so the reference is proved without a look-up per row and key (a third of the cost of a batch).
    run = models.ForeignKey(
        Run, on_delete=models.CASCADE, related_name="attempts", db_index=False, db_constraint=False
    )
    number = models.IntegerField()
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+", db_index=False, db_constraint=False)
    epoch = models.BigIntegerField()
    weight = models.IntegerField()
    driver_kind = models.CharField(max_length=10)
    driver_id = models.BigIntegerField()
    driver_name = models.CharField(max_length=200, blank=True, db_default="")
    maker = models.UUIDField(
        null=True, blank=True, help_text="Incarnation that was given the attempt: its container bears it ever after."
    )
    admitted_at = models.DateTimeField(help_text="Read once the counters were locked, so never before a release.")
    started_at = models.DateTimeField(null=True, blank=True)
    released_at = models.DateTimeField(null=True, blank=True)
    ending = models.CharField(max_length=20, blank=True, db_default="")
    reason = models.CharField(max_length=60, blank=True, db_default="")
    detail = models.TextField(blank=True, db_default="")
    exit_code = models.IntegerField(null=True, blank=True)
    log_size = models.BigIntegerField(db_default=0)
    log_truncated = models.BooleanField(db_default=False)

    class Meta:
        ordering = ("run", "number")
        constraints = (models.UniqueConstraint(fields=("run", "number"), name="attempt_number"),)
        indexes = (models.Index(fields=("tenant", "admitted_at"), name="attempt_history"),)

    def __str__(self) -> str:
        return f"attempt {self.number} of run {self.run_id}"


class Counter(models.Model):
    """A limit and what is in flight under it, keyed by (scope, key).

    Invariant: `in_flight` equals the sum of the weights of the live permits with this scope and key, at every
    committed instant (rule A5); the database refuses a negative one. `limit` null: counted, not limited.

    A tenant's row also carries its place in the fair order (rule A18): admission raises `virtual_time` by
    weight / share in the statement that counts the permit, so a tenant without headroom leaves the index of those to
    serve by the same write that took its last slot, and returns with the release.
    """

    scope = models.CharField(max_length=10, choices=Scope.choices)
    key = models.CharField(max_length=300)
    tenant = models.ForeignKey(Tenant, null=True, blank=True, on_delete=models.CASCADE, related_name="counters")
    limit = models.IntegerField(null=True, blank=True)
    in_flight = models.IntegerField(db_default=0)
    backlog = models.BooleanField(db_default=False, help_text="Something may be queued: look here when picking.")
    paused = models.BooleanField(db_default=False)
    virtual_time = models.FloatField(db_default=0)
    start_tag = models.FloatField(db_default=0)
    served_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("scope", "key")
        constraints = (
            models.UniqueConstraint(fields=("scope", "key"), name="counter_scope_key"),
            models.CheckConstraint(condition=Q(in_flight__gte=0), name="counter_not_negative"),
            models.CheckConstraint(
                condition=Q(limit__gte=0) | Q(limit__isnull=True), name="counter_limit_not_negative"
            ),
        )
        indexes = (
            models.Index(
                F("virtual_time"),
                F("served_at").asc(nulls_first=True),
                F("id"),
                name="counter_fair_order",
                condition=Q(scope="tenant", backlog=True, paused=False)
                & (Q(limit__isnull=True) | Q(in_flight__lt=F("limit"))),
            ),
            models.Index(F("start_tag").desc(), name="counter_start_tag", condition=Q(scope="tenant")),
        )

    def __str__(self) -> str:
        return f"{self.scope} {self.key}"


class Permit(models.Model):
    """The right to hold `weight` of one counter. `holder` is `run.attempt`, or an outside system's own id (`ext:…`).

    Invariant: unique (holder, scope): claiming again is the same right. A lease: renewed by its holder, lapses after
    `lapse_seconds` without renewal.
    """

    holder = models.CharField(max_length=300)
    scope = models.CharField(max_length=10, choices=Scope.choices)
    key = models.CharField(max_length=300)
    weight = models.IntegerField()
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="permits", db_constraint=False)
    run = models.ForeignKey(
        Run,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="permits",
        db_index=False,
        db_constraint=False,
    )
    attempt = models.IntegerField(null=True, blank=True)
    driver_name = models.CharField(max_length=200, blank=True)
    acquired_at = models.DateTimeField()
    renewed_at = models.DateTimeField()
    lapse_seconds = models.FloatField()

    class Meta:
        ordering = ("-id",)
        permissions = (("force_release_permit", "Can force the release of a permit"),)
        constraints = (
            models.UniqueConstraint(fields=("holder", "scope"), name="permit_holder_scope"),
            models.CheckConstraint(condition=Q(weight__gte=1), name="permit_weight_positive"),
            models.CheckConstraint(
                condition=Q(run__isnull=True, attempt__isnull=True) | Q(run__isnull=False, attempt__isnull=False),
                name="permit_run_attempt_together",
            ),
        )
        indexes = (
            models.Index(fields=("run", "attempt"), name="permit_run"),
            models.Index(fields=("scope", "key"), name="permit_counter"),
            models.Index(fields=("renewed_at",), name="permit_renewed"),
        )

    def __str__(self) -> str:
        return f"{self.scope} permit of {self.holder}"
