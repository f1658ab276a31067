"""What callers send, as pydantic models: the same library as the run specification, and one look at every field."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

from admission.services.permits import MAX_LAPSE_SECONDS, MIN_LAPSE_SECONDS
from admission.services.submitting import MAX_KEY, MAX_RUNS
from admission.services.tenant_tokens import MAX_LIFETIME_SECONDS
from admission.spec import MAX_INTEGER, RunSpec

Reason = Annotated[str, StringConstraints(max_length=1000, strip_whitespace=True)]
PermitId = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,200}$")]


class Body(BaseModel):
    """A misspelt field is an error with its name, never ignored."""

    model_config = ConfigDict(extra="forbid", strict=True)


class CancelBody(Body):
    """Why a run is cancelled."""

    reason: Reason = ""


class ReasonBody(Body):
    """Why an operator does it; for the audit log."""

    reason: Reason = Field(min_length=1)


class ForceReleaseBody(ReasonBody):
    """Which kind of permit it is, and why it is taken."""

    tenant: str | None = Field(
        default=None, max_length=60, description="Slug, of a permit of another system; null: `permit` is run.attempt."
    )


class BatchItem(BaseModel):
    """One run of a batch."""

    model_config = ConfigDict(extra="forbid")

    spec: RunSpec
    idempotency_key: str | None = Field(default=None, min_length=1, max_length=MAX_KEY)


class BatchBody(BaseModel):
    """Up to 1,000 runs under one name; the same name again adds to it."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=200)
    runs: list[BatchItem] = Field(min_length=1, max_length=MAX_RUNS)


class LooseItem(Body):
    """A batch's item before its specification is judged: a wrong one must not refuse the others."""

    spec: Any
    idempotency_key: str | None = None


class LooseBatchBody(Body):
    """As `BatchBody`; each item is judged by itself."""

    name: str = Field(min_length=1, max_length=200)
    runs: list[Any] = Field(min_length=1, max_length=MAX_RUNS)


class TenantBody(Body):
    """A new tenant."""

    slug: str = Field(max_length=60)
    name: str = Field(default="", max_length=200)
    weight: int | float | str = Field(default=1, description="Share of the fleet; fractions allowed.")
    queue_depth: int | None = Field(default=None, ge=0, le=MAX_INTEGER)
    reason: Reason = ""


class TenantPatchBody(Body):
    """What of a tenant may change; a field left out stays."""

    name: str = Field(default="", max_length=200)
    weight: int | float | str = 1
    queue_depth: int | None = Field(default=None, ge=0, le=MAX_INTEGER)
    reason: Reason = ""


class PauseBody(Body):
    """Stops admission; running work goes on."""

    reason: Reason = Field(min_length=1)
    resume_at: Annotated[AwareDatetime | None, Field(default=None, strict=False)]


class QuotaBody(Body):
    """A limit of runs' weights in flight at once, over the whole fleet."""

    limit: int = Field(ge=0, le=MAX_INTEGER)
    reason: Reason = Field(default="", description="For the audit log; needed, but for a dry run.")


class LimitBody(Body):
    """A limit below the tenant's: of one of its concurrency keys, or of a harness (no tenant, null: not bounded)."""

    scope: str = Field(pattern="^(key|harness)$")
    key: str = Field(min_length=1, max_length=200, description="The concurrency key, or the harness's name.")
    tenant: str | None = Field(default=None, max_length=60, description="Slug; for a concurrency key.")
    limit: int | None = Field(ge=0, le=MAX_INTEGER)
    reason: Reason = Field(min_length=1)


class TokenBody(Body):
    """A new API token of a tenant."""

    name: str = Field(min_length=1, max_length=100, description="What will use it.")
    lifetime_seconds: float | None = Field(
        default=None, gt=0, le=MAX_LIFETIME_SECONDS, allow_inf_nan=False, description="Null: until it is revoked."
    )
    reason: Reason = Field(default="", description="For the audit log. An operator must say it.")


class RenewBody(Body):
    """Permits to renew, by their own ids."""

    ids: list[PermitId] = Field(min_length=1, max_length=1000)


class PermitBody(Body):
    """A claim by another system, under its own id: the same id again is the same right."""

    id: PermitId
    weight: int = Field(default=1, ge=1, le=MAX_INTEGER)
    lapse_seconds: Annotated[
        float | None, Field(default=None, ge=MIN_LAPSE_SECONDS, le=MAX_LAPSE_SECONDS, description="Lease length.")
    ]
