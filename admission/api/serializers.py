"""What callers get. Read only: nothing here writes."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from admission.models import Attempt, Batch, Counter, Permit, Run, Tenant
from admission.services.submitting import Outcome, Submitted
from admission.states import Scope

OUTSIDE_PARTS = 3


class AttemptSerializer(serializers.ModelSerializer[Attempt]):
    """One admission of a run."""

    class Meta:
        model = Attempt
        fields = (
            "number", "epoch", "driver_kind", "driver_name", "admitted_at", "started_at", "released_at", "ending",
            "reason", "detail", "exit_code", "log_size", "log_truncated",
        )  # fmt: skip
        read_only_fields = fields


class RunSerializer(serializers.ModelSerializer[Run]):
    """A run in a list."""

    tenant = serializers.CharField(source="tenant.slug", read_only=True)
    batch_name = serializers.CharField(source="batch.name", read_only=True, default=None, allow_null=True)

    class Meta:
        model = Run
        fields = (
            "id", "tenant", "batch", "batch_name", "name", "kind", "state", "reason", "detail", "weight", "priority",
            "attempt", "tries", "driver_name", "created_at", "not_before", "admitted_at", "started_at", "finished_at",
            "exit_code", "cancel_requested_at",
        )  # fmt: skip
        read_only_fields = fields


class EventSerializer(serializers.Serializer[Any]):
    """One moment of a run's life."""

    at = serializers.DateTimeField()
    event = serializers.CharField()
    attempt = serializers.IntegerField(allow_null=True)
    detail = serializers.CharField(allow_blank=True)


class RunDetailSerializer(RunSerializer):
    """A run with its specification, its latest attempts and what happened when."""

    spec = serializers.JSONField(read_only=True)
    attempts = AttemptSerializer(many=True, read_only=True, source="latest_attempts")
    timeline = EventSerializer(many=True, read_only=True)

    class Meta:
        model = Run
        fields = (
            *RunSerializer.Meta.fields, "epoch", "created_by", "queue_deadline", "run_deadline", "cancel_by",
            "cancel_reason", "cancel_seen_at", "cancel_stopped_at", "cancel_confirmed_at", "idempotency_key", "spec",
            "attempts", "timeline",
        )  # fmt: skip
        read_only_fields = fields


class SubmittedSerializer(serializers.Serializer[Any]):
    """What became of one submission."""

    outcome = serializers.ChoiceField([o.value for o in Outcome])
    id = serializers.IntegerField(source="run", allow_null=True, help_text="The run; null: refused.")
    errors = serializers.ListField(  # type: ignore[assignment] # the base class has a property of this name
        child=serializers.DictField(child=serializers.CharField())
    )
    warnings = serializers.ListField(
        child=serializers.CharField(), help_text="It is queued, and nobody enrolled could ever take it: why."
    )


def shown_submitted(result: Submitted) -> dict[str, Any]:
    """The same as a plain dictionary: a serializer takes longer for it than the whole submit in the database."""
    return {
        "outcome": result.outcome.value,
        "id": result.run,
        "errors": result.errors,
        "warnings": result.warnings,
    }


class BatchSerializer(serializers.ModelSerializer[Batch]):
    """A batch and how far it is."""

    tenant = serializers.CharField(source="tenant.slug", read_only=True)
    counts = serializers.DictField(child=serializers.IntegerField(), read_only=True, help_text="Runs by state.")
    runs = serializers.IntegerField(source="counted", read_only=True, help_text="Runs counted.")
    counted_all = serializers.BooleanField(read_only=True, help_text="False: it has more runs than were counted.")

    class Meta:
        model = Batch
        fields = ("id", "tenant", "name", "created_at", "runs", "counted_all", "counts")
        read_only_fields = fields


class BatchAnswerSerializer(serializers.Serializer[Any]):
    """The answer to a batch: one item for each run, in order."""

    id = serializers.IntegerField(allow_null=True, help_text="Null: no run of it was right.")
    name = serializers.CharField()
    items = SubmittedSerializer(many=True)
    created = serializers.IntegerField()
    existed = serializers.IntegerField()
    refused = serializers.IntegerField()


class TenantSerializer(serializers.ModelSerializer[Tenant]):
    """A tenant with its limit and what it uses."""

    quota = serializers.IntegerField(allow_null=True, read_only=True)
    in_flight = serializers.IntegerField(read_only=True, help_text="Weight of what holds compute now.")

    class Meta:
        model = Tenant
        fields = (
            "id", "slug", "name", "weight", "quota", "in_flight", "queue_depth", "paused_at", "pause_note",
            "resume_at", "deleting_at", "created_at",
        )  # fmt: skip
        read_only_fields = fields


class QuotaSerializer(serializers.Serializer[Any]):
    """A tenant's limit, what is in flight, and what that means in a sentence."""

    tenant = serializers.CharField()
    limit = serializers.IntegerField(allow_null=True, help_text="Null: no quota.")
    before = serializers.IntegerField(allow_null=True, help_text="The limit before this call.")
    in_flight = serializers.IntegerField()
    over = serializers.IntegerField(help_text="What must end before anything is admitted again.")
    sentence = serializers.CharField()
    applied = serializers.BooleanField(help_text="False: a preview, nothing was changed.")


class LimitSerializer(serializers.ModelSerializer[Counter]):
    """A limit below the tenant's."""

    key = serializers.SerializerMethodField()
    tenant = serializers.CharField(source="tenant.slug", read_only=True, default=None, allow_null=True)

    class Meta:
        model = Counter
        fields = ("scope", "tenant", "key", "limit", "in_flight")
        read_only_fields = fields

    def get_key(self, counter: Counter) -> str:
        """As runs name it."""
        return counter.key.partition(":")[2] if counter.scope == Scope.KEY else counter.key


class LimitChangeSerializer(serializers.Serializer[Any]):
    """A changed limit and what that meets."""

    scope = serializers.CharField()
    tenant = serializers.CharField(allow_null=True)
    key = serializers.CharField()
    before = serializers.IntegerField(allow_null=True)
    limit = serializers.IntegerField(allow_null=True, help_text="Null: not bounded.")
    in_flight = serializers.IntegerField()
    sentence = serializers.CharField()


class RenewedSerializer(serializers.Serializer[Any]):
    """What is still held, and what is gone: the work of a lost permit must stop."""

    renewed = serializers.DictField(child=serializers.FloatField(), help_text="Lease length in seconds by id.")
    lost = serializers.ListField(child=serializers.CharField())


class PermitSerializer(serializers.ModelSerializer[Permit]):
    """A permit. `id` is what its holder is called: `run.attempt`, or the outside system's own id."""

    id = serializers.SerializerMethodField()
    tenant = serializers.CharField(source="tenant.slug", read_only=True)
    lapses_in_seconds = serializers.FloatField(read_only=True, help_text="By the database's clock.")

    class Meta:
        model = Permit
        fields = (
            "id", "tenant", "scope", "key", "weight", "run", "attempt", "driver_name", "acquired_at", "renewed_at",
            "lapse_seconds", "lapses_in_seconds",
        )  # fmt: skip
        read_only_fields = fields

    def get_id(self, permit: Permit) -> str:
        """Without the prefix that keeps tenants' ids apart."""
        return permit.holder if permit.run_id is not None else permit.holder.split(":", OUTSIDE_PARTS - 1)[-1]


class ClaimSerializer(serializers.Serializer[Any]):
    """The answer to a claim or a renewal."""

    id = serializers.CharField()
    outcome = serializers.ChoiceField(["granted", "held", "renewed"])
    lapse_seconds = serializers.FloatField()


class ReleaseSerializer(serializers.Serializer[Any]):
    """Whether it was held."""

    id = serializers.CharField()
    released = serializers.BooleanField()


class ForcedSerializer(serializers.Serializer[Any]):
    """What a forced release did."""

    runs_taken = serializers.IntegerField(help_text="Runs taken from their driver, with all their permits.")
    released = serializers.IntegerField(help_text="Permits of other systems.")
    gone = serializers.IntegerField(help_text="Changed hands, or ended, meanwhile.")
