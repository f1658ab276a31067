"""The control plane over REST: what an agent on somebody else's machine speaks.

Every call of the protocol may be repeated; the driver does that, with back-off. Nothing is repeated here.
"""

from __future__ import annotations

import gzip
import random
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from admission.spec import parse_spec
from runners.agent.artifacts import Kept, Limits
from runners.agent.assignment import Assignment, Capacity, Result, RunKey, Verdict
from runners.agent.control import ArtifactRefused, ClaimCut, ControlUnavailable, LogOffset, Superseded
from runners.agent.cutting import CallCut, CuttableTransport
from runners.agent.wording import MAX_DETAIL, MAX_REASON, storable
from runners.transport import ApiError, Transport, Unreachable, decoded

_NO_CONTENT, _BAD, _UNAUTHORIZED, _CONFLICT, _TOO_LARGE, _RANGE, _TOO_MANY = 204, 400, 401, 409, 413, 416, 429
# The server answers when the bytes are stored, perhaps on another machine.
UPLOAD_SECONDS = 600.0

GZIP_FROM_BYTES = 1024
GZIP_LEVEL = 1

MOST_WAIT_SECONDS = 60.0
_random = random.SystemRandom()

OnVerdict = Callable[[RunKey, Verdict], None]


class HttpControl:
    """Implements `runners.agent.control.Control`. Used by many threads.

    `on_verdict` hears of cancels that came with any answer. `mode` is what the server wants of this runner, `revoked`
    turns true when its token is dead.
    """

    def __init__(
        self,
        transport: Transport,
        on_verdict: OnVerdict | None = None,
        stored_token: Callable[[], str] | None = None,
        waiting: CuttableTransport | None = None,
    ) -> None:
        self.mode = "active"
        self.revoked = False
        self.heartbeat_seconds: float | None = None
        self.poll_seconds: float | None = None
        self.fence_seconds: float | None = None
        """For how long after sending a renewal a run may be executed; None: the server does not fence strictly."""
        self.kept_fence_seconds: float | None = None
        """What this driver does keep: the server gives nothing to one that keeps less than it asks."""
        self.on_verdict = on_verdict
        self.wait_seconds = 0.0
        """For how long the server holds a claim; 0 until it said so."""
        self.waits = False
        """A claim is held just now."""
        self._pause: float | None = None
        self._transport = transport
        self._waiting = waiting
        """Claims that are held go over this one. Without it none is held."""
        self._stored_token = stored_token
        self._limits = Limits()
        self._job_tokens: dict[RunKey, str] = {}
        self._lock = threading.Lock()

    def introduce(self) -> dict[str, Any]:
        """Ask the server who this is: proves the token, and brings the intervals."""
        answer: dict[str, Any] = self._call("GET", "/runner")
        told = (answer.get(name) for name in ("artifact_file_bytes", "artifact_run_bytes", "artifact_count"))
        # An older server says nothing of it and judges by its own.
        self._limits = Limits(*(int(one) for one in told if one is not None))
        return answer

    def held(self) -> list[tuple[RunKey, str]]:
        """Everything the ledger says this runner holds, with its state."""
        listed = self._call("GET", "/runner/holds")["assignments"]
        return [(RunKey(item["run"], item["epoch"]), str(item["state"])) for item in listed]

    def claim(self, request_id: str, capacity: Capacity) -> Sequence[Assignment]:
        """Ask for runs; one whose specification this version cannot read is reported as such, not executed."""
        answer = self._ask(request_id, capacity, held=capacity.slots > 0)
        given = [self._assignment(item) for item in answer["assignments"]] if answer else []
        return [assignment for assignment in given if assignment is not None]

    def watch(self) -> None:
        """Ask for no run, but hear of cancels and of another mode as soon as there is one."""
        self._ask(uuid.uuid4().hex, Capacity(0), held=True)

    def pause(self) -> float | None:
        """Before the next claim, as the last answer says."""
        return self._pause

    def may_wait(self) -> None:
        """The next claim may be held."""
        if self._waiting is not None:
            self._waiting.renew()

    def stop_waiting(self) -> None:
        """End a claim that is held, or the next one."""
        if self._waiting is not None:
            self._waiting.cut()

    def _ask(self, request_id: str, capacity: Capacity, *, held: bool) -> Any:
        body: dict[str, Any] = {
            "request_id": request_id,
            "slots": capacity.slots,
            "memory_mib": capacity.memory_mib,
            "cpu": capacity.cpu,
        }
        if self.kept_fence_seconds is not None:
            body["fence_seconds"] = self.kept_fence_seconds
        if not held or self._waiting is None or not self.wait_seconds:
            return self._call("POST", "/runner/claims", json=body)
        # Not all after the same time: a fleet that was started together must not return in step.
        body["wait_seconds"] = self.wait_seconds * _random.uniform(0.8, 1.0)
        self.waits = self.waits or capacity.slots > 0
        try:
            return self._call("POST", "/runner/claims", self._waiting, json=body)
        except CallCut as error:
            raise ClaimCut from error
        finally:
            self.waits = self.waits and not capacity.slots

    def start(self, keys: Sequence[RunKey]) -> dict[RunKey, Verdict]:
        """Say that these are about to be executed."""
        return self._verdicts("/runner/starts", {"runs": [_named(key) for key in keys]})

    def heartbeat(self, keys: Sequence[RunKey]) -> dict[RunKey, Verdict]:
        """Renew leases and permits of exactly these; of none, it is a sign of life that brings cancels."""
        return self._verdicts("/runner/heartbeats", {"runs": [_named(key) for key in keys]})

    def pulling(self, keys: Sequence[RunKey]) -> dict[RunKey, Verdict]:
        """Say that the images of these are being pulled."""
        return self._verdicts("/runner/heartbeats", {"runs": [], "pulling": [_named(key) for key in keys]})

    def append_log(self, key: RunKey, offset: int, data: bytes) -> int:
        """Store log bytes; returns where the next begin."""
        with self._lock:
            token = self._job_tokens.get(key, "")
        headers = {"Job-Token": token, "Content-Type": "application/octet-stream"}
        if len(data) >= GZIP_FROM_BYTES:
            data, headers = gzip.compress(data, GZIP_LEVEL), {**headers, "Content-Encoding": "gzip"}
        try:
            answer = self._call(
                "POST",
                f"/runner/runs/{key.run}/logs",
                data=data,
                params={"epoch": key.epoch, "offset": offset},
                headers=headers,
            )
        except ApiError as error:
            if error.status == _RANGE:
                raise LogOffset(int(error.problem["stored"])) from error
            if error.status == _CONFLICT or error.code == "bad_job_token":
                raise Superseded(str(error)) from error
            raise
        if answer["verdict"] == Verdict.CANCEL:
            self._tell(key, Verdict.CANCEL)
        return int(answer["stored"])

    @property
    def artifact_limits(self) -> Limits:
        """As the server said when we introduced ourselves."""
        return self._limits

    def put_artifact(self, key: RunKey, kept: Kept) -> None:
        """Store one kept file."""
        with self._lock:
            token = self._job_tokens.get(key, "")
        try:
            with kept.path.open("rb") as file:
                self._call(
                    "POST",
                    f"/runner/runs/{key.run}/artifacts",
                    # An empty file would be sent without a length.
                    data=file if kept.size else b"",
                    params={"epoch": key.epoch, "name": kept.name},
                    headers={
                        "Job-Token": token,
                        "Artifact-Sha256": kept.sha256,
                        "Content-Type": "application/octet-stream",
                    },
                    read_seconds=UPLOAD_SECONDS,
                )
        except ApiError as error:
            if error.code in {"superseded", "bad_job_token"}:
                raise Superseded(str(error)) from error
            if error.status in (_BAD, _CONFLICT, _TOO_LARGE):
                raise ArtifactRefused(str(error)) from error
            raise

    def remember(self, key: RunKey, job_token: str) -> None:
        """The job token of a hold that an earlier life was given."""
        with self._lock:
            self._job_tokens[key] = job_token

    def settle(self, results: Sequence[Result]) -> dict[RunKey, Verdict]:
        """Report ends."""
        return self._verdicts("/runner/results", {"results": [_result(result) for result in results]})

    def give_back(self, keys: Sequence[RunKey], reason: str) -> None:
        """Return runs of which nothing is left here."""
        returned = [{**_named(key), "ending": "returned", "reason": storable(reason, MAX_REASON)} for key in keys]
        self._verdicts("/runner/results", {"results": returned})

    def forget(self, key: RunKey) -> None:
        """Drop its job token: until then output may follow its end."""
        with self._lock:
            self._job_tokens.pop(key, None)

    def goes_on(self, key: RunKey, attempt: int) -> bool:
        """Never: a runner's runs end by its lease, and are not adopted."""
        return False

    def thread_ends(self) -> None:
        """Close this thread's connection to the server."""
        self._transport.close()
        if self._waiting is not None:
            self._waiting.close()

    def _assignment(self, item: Mapping[str, Any]) -> Assignment | None:
        key = RunKey(item["run"], item["epoch"])
        try:
            spec = parse_spec(item["spec"])
        except ValidationError as error:
            detail = f"this runner's version cannot read the specification: {error}"
            unreadable = {"ending": "failed", "reason": "invalid_spec", "detail": storable(detail, MAX_DETAIL)}
            self._verdicts("/runner/results", {"results": [{**_named(key), **unreadable}]})
            return None
        with self._lock:
            self._job_tokens[key] = item["job_token"]
        return Assignment(
            run=key.run,
            epoch=key.epoch,
            attempt=item["attempt"],
            tenant=item["tenant"],
            spec=spec,
            job_token=item["job_token"],
        ).given(item["secrets"])

    def _verdicts(self, path: str, body: Mapping[str, Any]) -> dict[RunKey, Verdict]:
        listed = self._call("POST", path, json=body)["verdicts"]
        return {RunKey(item["run"], item["epoch"]): Verdict(item["verdict"]) for item in listed}

    def _call(self, method: str, path: str, over: Transport | None = None, **parts: Any) -> Any:
        over = over or self._transport
        used = over.token
        try:
            answer = self._answer(over, method, path, parts)
        except Unreachable as error:
            raise ControlUnavailable(str(error), retry_after=error.retry_after) from error
        except ApiError as error:
            if error.status == _UNAUTHORIZED and error.code != "bad_job_token":
                self.revoked = not self._takes_up_another(over, used)
                raise ControlUnavailable(str(error)) from error
            if error.status == _TOO_MANY or error.code == "poll_superseded":
                raise ControlUnavailable(str(error), retry_after=error.retry_after) from error
            raise
        if answer is not None:
            self._note(answer)
        return answer

    def _takes_up_another(self, over: Transport, refused: str) -> bool:
        """Whether the token was replaced meanwhile: the call is repeated with what is stored now."""
        with self._lock:
            if over.token == refused and self._stored_token is not None:
                over.token = self._stored_token() or refused
            return over.token != refused

    def _answer(self, over: Transport, method: str, path: str, parts: Mapping[str, Any]) -> Any:
        response = over.call(method, path, **parts)
        if response.status_code == _NO_CONTENT:
            self.mode = response.headers.get("Runner-Mode", self.mode)
            self._pause = _seconds(response.headers.get("Poll-Seconds"))
            return None
        return decoded(response)

    def _note(self, answer: Mapping[str, Any]) -> None:
        self.mode = answer.get("mode", self.mode)
        self.heartbeat_seconds = answer.get("heartbeat_seconds", self.heartbeat_seconds)
        self.poll_seconds = self._pause = answer.get("poll_seconds", self.poll_seconds)
        self.wait_seconds = min(answer.get("wait_seconds", self.wait_seconds), MOST_WAIT_SECONDS)
        self.fence_seconds = answer.get("fence_seconds", self.fence_seconds)
        for item in answer.get("cancel", []):
            self._tell(RunKey(item["run"], item["epoch"]), Verdict.CANCEL)

    def _tell(self, key: RunKey, verdict: Verdict) -> None:
        if self.on_verdict is not None:
            self.on_verdict(key, verdict)


def _seconds(text: str | None) -> float | None:
    """A header's number; null for none, and for what is none."""
    try:
        return min(max(0.0, float(text)), MOST_WAIT_SECONDS) if text else None
    except ValueError:
        return None


def _named(key: RunKey) -> dict[str, int]:
    return {"run": key.run, "epoch": key.epoch}


def _result(result: Result) -> dict[str, Any]:
    return {
        **_named(result.key),
        "ending": result.ending.value,
        "reason": storable(result.reason, MAX_REASON),
        "detail": storable(result.detail, MAX_DETAIL),
        "exit_code": result.exit_code,
        **({} if result.log_end is None else {"log_end": result.log_end}),
    }
