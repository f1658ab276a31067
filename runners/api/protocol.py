"""The runner protocol: claim, start, heartbeat, logs, results. Hot paths: named SQL only, few statements.

Every answer carries the intervals and the verdicts, so a cancel reaches the runner with whatever it asks next (Q9).
The paths of one run also need its job token; the batch forms prove each hold by the statement itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import AuthenticationFailed, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from admission.drivers import Driver
from admission.engine import Envelope
from admission.services import runs as holds
from admission.services.runs import Hold, HoldVerdict, Settlement
from controlplane.api.bearer import bearer
from controlplane.api.parsing import parse_body
from controlplane.api.problems import Superseded
from controlplane.api.views import View
from controlplane.core.audit import Actor
from controlplane.core.conf import conf
from controlplane.core.fencing import runner_fence_seconds
from runners.api import bodies
from runners.api.authentication import RunnerAuthentication
from runners.services import claims, logs
from runners.services.fleet import (
    RunnerIdentity,
    drain_runner,
    find_runner,
    refuse_unfenced,
    resume_own,
    runner_driver,
)
from runners.services.hiding import hidden_text
from runners.services.jobs import is_job_token, issue_job_token
from runners.services.rotation import Rotated, rotate_token
from runners.services.secrets import FIELD, give

POLL_SECONDS = 0.5
DRAIN_REASONS = ("drained", "shutdown", "fenced", "no_slot")
JOB_TOKEN = OpenApiParameter("Job-Token", str, "header", required=True, description="From the assignment.")


class RunnerView(View):
    """A view that only runners call."""

    authentication_classes = [RunnerAuthentication]

    @property
    def runner(self) -> RunnerIdentity:
        """Who calls."""
        principal: Any = self.request.user
        found: RunnerIdentity = principal.runner
        return found

    @property
    def driver(self) -> Driver:
        """The same, as admission sees it."""
        return runner_driver(self.runner)

    def intervals(self) -> dict[str, Any]:
        """What every answer carries."""
        return {
            "heartbeat_seconds": conf().runner_heartbeat_seconds,
            "poll_seconds": POLL_SECONDS,
            "fence_seconds": runner_fence_seconds(),
            "mode": self.runner.mode,
            "cancel": [{"run": run, "epoch": epoch} for run, epoch in self.runner.cancels],
        }

    def prove_job(self, request: Request, run: int, epoch: int) -> None:
        """The call comes from who was given this hold."""
        token = request.headers.get("Job-Token", "")
        if not is_job_token(token, run=run, epoch=epoch, runner=self.runner.id):
            raise AuthenticationFailed(
                "The header Job-Token is not the one of this run and epoch.", code="bad_job_token"
            )

    def verdicts(self, found: dict[Hold, HoldVerdict]) -> Response:
        """The answer about many."""
        listed = [{"run": run, "epoch": epoch, "verdict": v.value} for (run, epoch), v in found.items()]
        return Response({"verdicts": listed, **self.intervals()})

    def assignment(
        self, claimed: claims.Claimed, state: str, secrets: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """One run to start; with its secrets only as the answer of a claim."""
        token = issue_job_token(run=claimed.run, epoch=claimed.epoch, runner=self.runner.id)
        return {
            "run": claimed.run,
            "epoch": claimed.epoch,
            "attempt": claimed.attempt,
            "tenant": claimed.tenant,
            "spec": claimed.spec,
            "job_token": token,
            "secrets": dict(secrets or {}),
            "state": state,
        }


class SelfView(RunnerView):
    """The calling runner."""

    @extend_schema(operation_id="runner_read", tags=["runner"], responses=bodies.RunnerAnswer)
    def get(self, request: Request) -> Response:
        """Whether the token is alive, and what the server knows."""
        runner = self.runner
        facts = {"id": runner.id, "name": runner.name, "labels": dict(runner.labels), "slots": runner.slots}
        more = {"executors": list(runner.executors), "one_job": runner.one_job}
        caps = {
            name: getattr(conf(), name) for name in ("artifact_file_bytes", "artifact_run_bytes", "artifact_count")
        }
        return Response({**facts, **more, **caps, **self.intervals()})


class ClaimsView(RunnerView):
    """Asking for runs."""

    @extend_schema(
        operation_id="runner_claim",
        tags=["runner"],
        request=bodies.ClaimBody,
        responses={200: bodies.AssignmentsAnswer, 204: None},
    )
    def post(self, request: Request) -> Response:
        """Runs admitted to the caller, up to its free capacity; 204 when there is nothing for it now."""
        body = parse_body(bodies.ClaimBody, request)
        refuse_unfenced(body.fence_seconds)
        envelope = Envelope(min(body.slots, self.runner.slots), body.memory_mib, body.cpu)
        claimed = claims.claim_runs(self.driver, body.request_id, envelope)
        given = give(self.driver, [(one.run, one.epoch) for one in claimed or [] if one.spec.get(FIELD)])
        if claimed is None and not self.runner.cancels:
            headers = {"Poll-Seconds": str(POLL_SECONDS), "Runner-Mode": self.runner.mode}
            return Response(status=204, headers=headers)
        kept = [one for one in claimed or [] if (one.run, one.epoch) not in given.refused]
        listed = [self.assignment(one, "admitted", given.values.get((one.run, one.epoch))) for one in kept]
        return Response({"assignments": listed, **self.intervals()})


class HoldsView(RunnerView):
    """What the calling runner holds."""

    @extend_schema(operation_id="runner_holds", tags=["runner"], responses=bodies.AssignmentsAnswer)
    def get(self, request: Request) -> Response:
        """Everything the ledger says the caller holds: what an agent asks after a restart."""
        listed = [self.assignment(claimed, state) for claimed, state in claims.held_runs(self.driver)]
        return Response({"assignments": listed, **self.intervals()})


class OneRunView(RunnerView):
    """A verb over one hold, which its job token proves."""

    def about(
        self, request: Request, run: int, epoch: int, verb: Callable[[Driver, Hold], dict[Hold, HoldVerdict]]
    ) -> Response:
        """The verdict about this hold; 409 when it has moved on."""
        self.prove_job(request, run, epoch)
        verdict = verb(self.driver, (run, epoch))[(run, epoch)]
        if verdict is HoldVerdict.SUPERSEDED:
            raise Superseded
        return Response({"run": run, "epoch": epoch, "verdict": verdict.value, **self.intervals()})


def _one_run(operation: str, body: type[bodies.Message]) -> Callable[[Any], Any]:
    """The schema that the verbs over one hold share."""
    return extend_schema(
        operation_id=operation,
        tags=["runner"],
        parameters=[JOB_TOKEN],
        request=body,
        responses=bodies.OneVerdictAnswer,
    )


class StartView(OneRunView):
    """Starting one run."""

    @_one_run("runner_start", bodies.EpochBody)
    def post(self, request: Request, run: int) -> Response:
        """Only after `ok` may anything of it be executed; 409: it has moved on."""
        epoch = parse_body(bodies.EpochBody, request).epoch
        return self.about(request, run, epoch, lambda driver, hold: holds.start_runs(driver, [hold]))


class HeartbeatView(OneRunView):
    """Renewing one run's lease."""

    @_one_run("runner_heartbeat", bodies.EpochBody)
    def post(self, request: Request, run: int) -> Response:
        """Renews the lease and the permits of the run."""
        epoch = parse_body(bodies.EpochBody, request).epoch
        return self.about(request, run, epoch, lambda driver, hold: holds.renew_runs(driver, [hold]))


class ResultView(OneRunView):
    """Reporting one run's end."""

    @_one_run("runner_result", bodies.ResultFields)
    def post(self, request: Request, run: int) -> Response:
        """Exactly once: a repeat of the same result is 200 too, another's is 409."""
        body = parse_body(bodies.ResultFields, request)
        result = bodies.ResultBody(run=run, **body.model_dump())
        return self.about(request, run, body.epoch, lambda driver, _: settle(driver, [result]))


class StartsView(RunnerView):
    """Starting many runs."""

    @extend_schema(
        operation_id="runner_starts", tags=["runner"], request=bodies.HoldsBody, responses=bodies.VerdictsAnswer
    )
    def post(self, request: Request) -> Response:
        """One verdict for each."""
        return self.verdicts(holds.start_runs(self.driver, _holds(request)))


class HeartbeatsView(RunnerView):
    """Renewing many leases."""

    @extend_schema(
        operation_id="runner_heartbeats",
        tags=["runner"],
        request=bodies.HeartbeatsBody,
        responses=bodies.VerdictsAnswer,
    )
    def post(self, request: Request) -> Response:
        """One verdict for each; an empty list is a sign of life."""
        body = parse_body(bodies.HeartbeatsBody, request)
        pulled = holds.extend_starts(self.driver, _named(body.pulling))
        return self.verdicts(pulled | holds.renew_runs(self.driver, _named(body.runs)))


class DrainView(RunnerView):
    """The calling runner's own drain."""

    @extend_schema(
        operation_id="runner_drain", tags=["runner"], request=bodies.DrainBody, responses=bodies.DrainAnswer
    )
    def post(self, request: Request) -> Response:
        """No new work from now on. An operator's drain is not changed by it."""
        reason = parse_body(bodies.DrainBody, request).reason or "asked by its machine"
        changed = drain_runner(self.runner.id, actor=runner_actor(request, self.runner), reason=reason, own=True)
        return Response({"changed": changed, **self.intervals(), "mode": "draining"})

    @extend_schema(operation_id="runner_resume", tags=["runner"], responses={200: bodies.DrainAnswer})
    def delete(self, request: Request) -> Response:
        """Takes back the own drain; an operator's stays."""
        changed = resume_own(self.runner.id, actor=runner_actor(request, self.runner))
        now = find_runner(bearer(request) or "")
        return Response({"changed": changed, **self.intervals(), "mode": now.mode if now else "draining"})


class RotateView(RunnerView):
    """A new token for the calling runner."""

    @extend_schema(
        operation_id="runner_rotate", tags=["runner"], request=bodies.RotateBody, responses=bodies.RotatedAnswer
    )
    def post(self, request: Request) -> Response:
        """Both tokens open until the new one is used; asked again after a lost answer, it gives another new one."""
        body = parse_body(bodies.RotateBody, request)
        runner = self.runner
        rotated = rotate_token(
            runner.id,
            actor=runner_actor(request, runner),
            used=bearer(request),
            overlap_seconds=body.overlap_seconds,
        )
        return Response(rotated_answer(rotated))


def runner_actor(request: Request, runner: RunnerIdentity) -> Actor:
    """Who goes into the audit log."""
    return Actor(f"runner {runner.name}", request_id=request.META.get("wharfinger.request_id", ""))


def rotated_answer(rotated: Rotated) -> dict[str, Any]:
    """The one answer that holds the new token."""
    return {"id": rotated.runner, "name": rotated.name, "token": rotated.token, "old_until": rotated.old_until}


class ResultsView(RunnerView):
    """Reporting many ends."""

    @extend_schema(
        operation_id="runner_results", tags=["runner"], request=bodies.ResultsBody, responses=bodies.VerdictsAnswer
    )
    def post(self, request: Request) -> Response:
        """One verdict for each."""
        body = parse_body(bodies.ResultsBody, request)
        named = [(r.run, r.epoch) for r in body.results]
        if len(set(named)) != len(named):
            raise ValidationError({"results": "names a run and epoch twice"})
        return self.verdicts(settle(self.driver, body.results))


def _holds(request: Request) -> list[Hold]:
    return _named(parse_body(bodies.HoldsBody, request).runs)


def _named(listed: Sequence[bodies.HoldBody]) -> list[Hold]:
    """Once each: a hold named twice is one hold."""
    return list(dict.fromkeys((one.run, one.epoch) for one in listed))


def settle(driver: Driver, results: Sequence[bodies.ResultBody]) -> dict[Hold, HoldVerdict]:
    """Ends and returns of holds; returned ones are answered `ok` if they were held, else `superseded`."""
    ended = [r for r in results if r.ending != "returned"]
    settlements = [
        Settlement(r.run, r.epoch, r.ending, r.reason, hidden_text(r.run, r.detail), r.exit_code) for r in ended
    ]
    verdicts, _ = holds.settle_runs(driver, settlements)
    cut_short = [r for r in ended if r.log_end is not None and verdicts[(r.run, r.epoch)] is HoldVerdict.OK]
    logs.note_log_ends(driver, [(r.run, r.epoch, r.log_end or 0) for r in cut_short])
    returned = [r for r in results if r.ending == "returned"]
    for reason in dict.fromkeys(r.reason for r in returned):
        asked = [(r.run, r.epoch) for r in returned if r.reason == reason]
        taken = {one.run for one in holds.give_back(driver, asked, reason, drained=reason in DRAIN_REASONS)}
        verdicts |= {hold: HoldVerdict.OK if hold[0] in taken else HoldVerdict.SUPERSEDED for hold in asked}
    return verdicts
