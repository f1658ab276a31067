"""The runner protocol: claim, start, heartbeat, logs, results. Hot paths: named SQL only, few statements.

Every answer carries the intervals and the verdicts, so a cancel reaches the runner with whatever it asks next (Q9).
The paths of one run also need its job token; the batch forms prove each hold by the statement itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.exceptions import AuthenticationFailed, ValidationError
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response

from admission.drivers import Driver
from admission.engine import Envelope
from admission.services import runs as holds
from admission.services.runs import Hold, HoldVerdict, Settlement
from controlplane.api.pagination import whole_number
from controlplane.api.parsing import MIB, declared_length, parse_body, read_bounded
from controlplane.api.problems import RangeNotSatisfiable, Superseded
from controlplane.api.views import View
from runners.api import answers, bodies
from runners.api.authentication import RunnerAuthentication
from runners.services import claims, logs
from runners.services.fleet import RunnerIdentity, refuse_unfenced, runner_driver
from runners.services.jobs import is_job_token

MAX_CHUNK_BYTES = MIB
DRAIN_REASONS = ("drained", "shutdown", "fenced")
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
        return answers.intervals(self.runner)

    def prove_job(self, request: Request, run: int, epoch: int) -> None:
        """The call comes from who was given this hold."""
        token = request.headers.get("Job-Token", "")
        if not is_job_token(token, run=run, epoch=epoch, runner=self.runner.id):
            raise AuthenticationFailed(
                "The header Job-Token is not the one of this run and epoch.", code="bad_job_token"
            )

    def verdict(self, run: int, epoch: int, verdict: HoldVerdict) -> Response:
        """The answer about one run."""
        if verdict is HoldVerdict.SUPERSEDED:
            raise Superseded
        return Response({"run": run, "epoch": epoch, "verdict": verdict.value, **self.intervals()})

    def verdicts(self, found: dict[Hold, HoldVerdict]) -> Response:
        """The answer about many."""
        listed = [{"run": run, "epoch": epoch, "verdict": v.value} for (run, epoch), v in found.items()]
        return Response({"verdicts": listed, **self.intervals()})


class SelfView(RunnerView):
    """The calling runner."""

    @extend_schema(operation_id="runner_read", tags=["runner"], responses=bodies.RunnerAnswer)
    def get(self, request: Request) -> Response:
        """Whether the token is alive, and what the server knows."""
        runner = self.runner
        facts = {"id": runner.id, "name": runner.name, "labels": dict(runner.labels), "slots": runner.slots}
        return Response({**facts, "executors": list(runner.executors), **self.intervals()})


class ClaimsView(RunnerView):
    """Asking for runs."""

    @extend_schema(
        operation_id="runner_claim",
        tags=["runner"],
        request=bodies.ClaimBody,
        responses={
            200: bodies.AssignmentsAnswer,
            204: OpenApiResponse(
                description="Nothing. Poll-Seconds: pause before the next claim; Runner-Mode: as `mode`."
            ),
            401: OpenApiResponse(description="The token is dead; this also ends a call that is held."),
            409: OpenApiResponse(description="Fencing is asked for; or the same claim was asked again meanwhile."),
            429: OpenApiResponse(description="Too many claims of this runner are held; see Retry-After."),
            503: OpenApiResponse(description="The server is stopping, or its database is away; see Retry-After."),
        },
    )
    def post(self, request: Request) -> Response:
        """Runs admitted to the caller, up to its free capacity; 204 when there is nothing for it.

        With `wait_seconds` the call is held until there is: work, a run to cancel, another mode, a dead token. A call
        that was cut is repeated with the same request id; what was admitted for it is in the answer. Under a plain
        WSGI server nothing is held.
        """
        body = parse_body(bodies.ClaimBody, request)
        refuse_unfenced(body.fence_seconds)
        envelope = Envelope(min(body.slots, self.runner.slots), body.memory_mib, body.cpu)
        claimed = claims.claim_runs(self.driver, body.request_id, envelope)
        answer = answers.claim_answer(self.runner, claimed)
        if answer is None:
            return Response(status=204, headers=answers.nothing_headers(self.runner, answers.POLL_SECONDS))
        return Response(answer)


class HoldsView(RunnerView):
    """What the calling runner holds."""

    @extend_schema(operation_id="runner_holds", tags=["runner"], responses=bodies.AssignmentsAnswer)
    def get(self, request: Request) -> Response:
        """Everything the ledger says the caller holds: what an agent asks after a restart."""
        listed = [answers.assignment(self.runner, claimed, state) for claimed, state in claims.held_runs(self.driver)]
        return Response({"assignments": listed, **self.intervals()})


class StartView(RunnerView):
    """Starting one run."""

    @extend_schema(
        operation_id="runner_start",
        tags=["runner"],
        parameters=[JOB_TOKEN],
        request=bodies.EpochBody,
        responses=bodies.OneVerdictAnswer,
    )
    def post(self, request: Request, run: int) -> Response:
        """Only after `ok` may anything of it be executed; 409: it has moved on."""
        epoch = parse_body(bodies.EpochBody, request).epoch
        self.prove_job(request, run, epoch)
        return self.verdict(run, epoch, holds.start_runs(self.driver, [(run, epoch)])[(run, epoch)])


class HeartbeatView(RunnerView):
    """Renewing one run's lease."""

    @extend_schema(
        operation_id="runner_heartbeat",
        tags=["runner"],
        parameters=[JOB_TOKEN],
        request=bodies.EpochBody,
        responses=bodies.OneVerdictAnswer,
    )
    def post(self, request: Request, run: int) -> Response:
        """Renews the lease and the permits of the run."""
        epoch = parse_body(bodies.EpochBody, request).epoch
        self.prove_job(request, run, epoch)
        return self.verdict(run, epoch, holds.renew_runs(self.driver, [(run, epoch)])[(run, epoch)])


class ResultView(RunnerView):
    """Reporting one run's end."""

    @extend_schema(
        operation_id="runner_result",
        tags=["runner"],
        parameters=[JOB_TOKEN],
        request=bodies.ResultFields,
        responses=bodies.OneVerdictAnswer,
    )
    def post(self, request: Request, run: int) -> Response:
        """Exactly once: a repeat of the same result is 200 too, another's is 409."""
        body = parse_body(bodies.ResultFields, request)
        self.prove_job(request, run, body.epoch)
        result = bodies.ResultBody(run=run, **body.model_dump())
        return self.verdict(run, body.epoch, settle(self.driver, [result])[(run, body.epoch)])


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
        operation_id="runner_heartbeats", tags=["runner"], request=bodies.HoldsBody, responses=bodies.VerdictsAnswer
    )
    def post(self, request: Request) -> Response:
        """One verdict for each; an empty list is a sign of life."""
        return self.verdicts(holds.renew_runs(self.driver, _holds(request)))


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


class BytesParser(BaseParser):
    """Leaves the body to the view, whatever it is called."""

    media_type = "*/*"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        """Bounded, like every body."""
        request = (parser_context or {})["request"]
        return read_bounded(stream, declared_length(request), MAX_CHUNK_BYTES)


class LogAppendView(RunnerView):
    """Storing output."""

    parser_classes = [BytesParser]

    @extend_schema(
        operation_id="runner_log_append",
        tags=["runner"],
        parameters=[
            JOB_TOKEN,
            OpenApiParameter("epoch", int, required=True),
            OpenApiParameter("offset", int, required=True, description="Where these bytes begin."),
        ],
        request={"application/octet-stream": OpenApiTypes.BINARY},
        responses=bodies.LogAnswer,
    )
    def post(self, request: Request, run: int) -> Response:
        """Append. 416 with `stored` when the log ends elsewhere: go on from there."""
        if not {"epoch", "offset"} <= set(request.query_params):
            raise ValidationError({"offset": "give ?epoch= and ?offset="})
        epoch = whole_number(request, "epoch", 0, bodies.MAX_ID)
        offset = whole_number(request, "offset", 0, bodies.MAX_ID)
        self.prove_job(request, run, epoch)
        body: Any = request.data
        data = body if isinstance(body, bytes) else b""
        try:
            done = logs.append_log(self.driver, run, epoch, offset, data)
        except logs.OffsetMismatch as error:
            raise RangeNotSatisfiable(str(error), stored=error.stored) from error
        except logs.HoldSuperseded as error:
            raise Superseded from error
        verdict = "cancel" if done.cancel else "ok"
        return Response({"stored": done.stored, "verdict": verdict, **self.intervals()})


def _holds(request: Request) -> list[Hold]:
    body = parse_body(bodies.HoldsBody, request)
    # Once each: a hold named twice is one hold.
    return list(dict.fromkeys((one.run, one.epoch) for one in body.runs))


def settle(driver: Driver, results: Sequence[bodies.ResultBody]) -> dict[Hold, HoldVerdict]:
    """Ends and returns of holds; returned ones are answered `ok` if they were held, else `superseded`."""
    ended = [r for r in results if r.ending != "returned"]
    settlements = [Settlement(r.run, r.epoch, r.ending, r.reason, r.detail, r.exit_code) for r in ended]
    verdicts, _ = holds.settle_runs(driver, settlements)
    returned = [r for r in results if r.ending == "returned"]
    for reason in dict.fromkeys(r.reason for r in returned):
        asked = [(r.run, r.epoch) for r in returned if r.reason == reason]
        taken = {one.run for one in holds.give_back(driver, asked, reason, drained=reason in DRAIN_REASONS)}
        verdicts |= {hold: HoldVerdict.OK if hold[0] in taken else HoldVerdict.SUPERSEDED for hold in asked}
    return verdicts
