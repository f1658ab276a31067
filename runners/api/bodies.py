"""The runner protocol's messages, as pydantic models: what is wrong is refused by its name, never guessed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from admission.api.bodies import Reason
from admission.spec import MAX_INTEGER, RunSpec
from runners.services.enrolment import MAX_SLOTS
from runners.services.rotation import MAX_OVERLAP_SECONDS

MAX_BATCH = 1000
MAX_ID = 10**18

RequestId = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")]
Id = Annotated[int, Field(ge=0, le=MAX_ID)]
Labels = Annotated[dict[str, str], Field(max_length=50)]


class Message(BaseModel):
    """Strict: no conversions, no unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


class EnrolBody(Message):
    """What a machine says of itself."""

    token: str = Field(max_length=200, description="The enrolment token (whe_).")
    name: str = Field(min_length=1, max_length=200)
    labels: Labels = Field(default_factory=dict)
    executors: list[Literal["docker", "process"]] = Field(default=["docker"], min_length=1, max_length=2)
    slots: int = Field(default=1, ge=1, le=MAX_SLOTS)
    version: str = Field(default="", max_length=40)
    host: str = Field(default="", max_length=200)
    one_job: bool = Field(default=False, description="Takes one run, then drains.")


class ClaimBody(Message):
    """Asks for runs. The same request id gets the same answer again."""

    request_id: RequestId
    slots: int = Field(ge=0, le=MAX_SLOTS, description="Runs that could be started now.")
    memory_mib: int | None = Field(default=None, ge=0, le=MAX_INTEGER)
    cpu: float | None = Field(default=None, ge=0, le=1e9, allow_inf_nan=False)
    wait_seconds: float = Field(
        default=0,
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="For how long the server may hold the call until there is something; at most 60 s.",
    )
    fence_seconds: float | None = Field(
        default=None,
        ge=0,
        le=1e9,
        allow_inf_nan=False,
        description="For how long after sending a renewal the caller lets a run be executed; null: it does not fence.",
    )


class HoldBody(Message):
    """One hold of the calling runner."""

    run: Id
    epoch: Id


class HoldsBody(Message):
    """Many holds in one call."""

    runs: list[HoldBody] = Field(max_length=MAX_BATCH)


class HeartbeatsBody(HoldsBody):
    """Many holds in one call, and those whose image is being pulled."""

    pulling: list[HoldBody] = Field(
        default_factory=list,
        max_length=MAX_BATCH,
        description="Not started yet because of a pull: their start deadline moves on, for a bounded time.",
    )


class EpochBody(Message):
    """The epoch under which the run is held."""

    epoch: Id


class ResultFields(Message):
    """How a hold ended. `returned`: nothing of it is left here, and the control plane decides what becomes of it."""

    epoch: Id
    ending: Literal["succeeded", "failed", "timed_out", "cancelled", "returned"]
    reason: str = Field(default="", max_length=60)
    detail: str = Field(default="", max_length=20_000)
    exit_code: int | None = Field(default=None, ge=-(2**31), le=MAX_INTEGER)
    log_end: int | None = Field(
        default=None, ge=0, le=MAX_ID, description="Where the log would end, if not all of it could be delivered yet."
    )


class ResultBody(ResultFields):
    """One of many results."""

    run: Id


class ResultsBody(Message):
    """Many results in one call."""

    results: list[ResultBody] = Field(max_length=MAX_BATCH)


class HoldAnswer(BaseModel):
    """One hold of the calling runner."""

    run: int
    epoch: int


class Answer(BaseModel):
    """On every answer: how often to call, and what is wanted of the runner."""

    heartbeat_seconds: float
    poll_seconds: float = Field(description="Pause between two claims that were answered at once.")
    wait_seconds: float = Field(description="For how long the server holds a claim at most.")
    fence_seconds: float | None = Field(
        description="Strict fencing: no run may be executed longer than this after its last accepted renewal was sent."
    )
    mode: Literal["active", "paused", "draining"]
    cancel: list[HoldAnswer] = Field(description="Holds to stop and to report as cancelled.")


class AssignmentAnswer(BaseModel):
    """One run to start."""

    run: int
    epoch: int
    attempt: int
    tenant: str
    spec: RunSpec
    job_token: str = Field(description="Proves this hold on the paths of the one run (header Job-Token).")
    secrets: dict[str, str]
    state: str = Field(description="admitted: start it or return it; running: a restarted agent returns it.")


class AssignmentsAnswer(Answer):
    """Runs admitted to the calling runner."""

    assignments: list[AssignmentAnswer]


class VerdictAnswer(BaseModel):
    """ok, cancel (stop it and report) or superseded (stop it and forget it)."""

    run: int
    epoch: int
    verdict: Literal["ok", "cancel", "superseded"]


class OneVerdictAnswer(VerdictAnswer, Answer):
    """The answer about one run; superseded is a 409 instead."""


class VerdictsAnswer(Answer):
    """One verdict for each hold that was named."""

    verdicts: list[VerdictAnswer]


class LogAnswer(Answer):
    """How much is stored; the next bytes begin there."""

    stored: int
    verdict: Literal["ok", "cancel", "superseded"]


class RunnerAnswer(Answer):
    """The calling runner, as the server knows it."""

    id: int
    name: str
    labels: dict[str, str]
    executors: list[str]
    slots: int
    one_job: bool
    artifact_file_bytes: int = Field(description="Size of one kept file at most.")
    artifact_run_bytes: int = Field(description="Size of all that one attempt keeps at most.")
    artifact_count: int = Field(description="Files that one attempt keeps at most.")


class DrainAnswer(Answer):
    """How the runner stands now."""

    changed: bool = Field(description="Whether this call changed it.")


class EnrolAnswer(BaseModel):
    """The runner's token is shown here once."""

    id: int
    name: str
    token: str


class DrainBody(Message):
    """A machine asks that its runner is given nothing more."""

    reason: str = Field(default="", max_length=1000, description="For the audit log.")


class RotateBody(Message):
    """Asks for a new token."""

    overlap_seconds: float | None = Field(
        default=None,
        ge=0,
        le=MAX_OVERLAP_SECONDS,
        allow_inf_nan=False,
        description="How long the token in use opens beside the new one, until that is used; null: as configured.",
    )


class RotateReasonBody(RotateBody):
    """The same by an operator, with why."""

    reason: Reason = Field(min_length=1)


class RotatedAnswer(BaseModel):
    """The new token is shown here once."""

    id: int
    name: str
    token: str
    old_until: AwareDatetime = Field(description="The token before it opens until then, or until this one was used.")


class PauseBody(Message):
    """Why an operator pauses a runner, and until when."""

    reason: Reason = Field(min_length=1, description="Shown as the pause's note.")
    resume_at: Annotated[AwareDatetime | None, Field(default=None, strict=False)]


class ReasonBody(Message):
    """Why an operator does it."""

    reason: Reason = Field(min_length=1)


class EnrolmentTokenBody(Message):
    """A new enrolment token."""

    name: str = Field(default="", max_length=100)
    uses: int = Field(default=1, ge=1, le=MAX_SLOTS)
    lifetime_seconds: float = Field(default=3600, ge=1, le=30 * 86_400, allow_inf_nan=False)
    tenant: str | None = Field(default=None, max_length=60, description="Its runners serve this tenant only.")
    trust_labels: Labels = Field(default_factory=dict, description="Names begin with 'trust.'.")
    runner: Id | None = Field(default=None, description="The runner whose machine comes back with it, once.")
    one_job: bool = Field(default=False, description="Its runners take one run, then drain.")
    reason: str = Field(default="", max_length=1000)
