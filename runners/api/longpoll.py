"""`POST /runner/claims` on the event loop: the same call as `ClaimsView`, but it waits. Schema: `ClaimsView`.

Credentials, bodies, problems and answers are those of the view; only the waiting is another's (`runners.polling`).
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError
from rest_framework import exceptions

from controlplane.api.bearer import bearer_of
from controlplane.api.parsing import BODY_LIMIT_BYTES, decode_json
from controlplane.api.problems import CONTENT_TYPE, BodyTooLarge, Unavailable, problem_of
from controlplane.core.conf import conf
from controlplane.core.errors import InvalidInput, field_errors
from controlplane.core.tokens import token_hash
from runners.api.answers import POLL_SECONDS, claim_answer, nothing_headers
from runners.api.authentication import CHALLENGE, check_runner_token, token_dead
from runners.api.bodies import ClaimBody
from runners.polling.desk import Closing, Desk, Outcome, TokenDead
from runners.services.polls import Asked

PATH = "/api/v1/runner/claims"
REQUEST_ID = "x-request-id"
CLOSING_RETRY_SECONDS = 1
_REQUEST_ID_ACCEPTED = re.compile(r"[A-Za-z0-9._-]{1,100}")

Answer = tuple[int, list[tuple[str, str]], bytes]


class ClaimsEndpoint:
    """Serves the one path, under granian's interface."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    async def serve(self, scope: Any, protocol: Any) -> None:
        """One claim, until it has something to say or its caller has gone."""
        headers = dict(scope.headers.items())
        given = headers.get(REQUEST_ID, "")
        request_id = given if _REQUEST_ID_ACCEPTED.fullmatch(given) else uuid.uuid4().hex
        answering = asyncio.ensure_future(self._answer(headers, protocol, request_id))
        gone = asyncio.ensure_future(protocol.client_disconnect())
        await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            # Whatever is just being claimed for it is stored, and the repeat of the claim finds it.
            answering.cancel()
            return
        gone.cancel()
        status, answered, body = answering.result()
        answered.append((REQUEST_ID, request_id))
        protocol.response_bytes(status, answered, body)

    async def _answer(self, headers: Mapping[str, str], protocol: Any, request_id: str) -> Answer:
        try:
            asked, body = await self._read(headers, protocol)
            wait = min(body.wait_seconds, conf().longest_poll_seconds)
            return _of(await self.desk.poll(asked, wait, body.fence_seconds), wait)
        except TokenDead:
            return _problem(token_dead(), request_id)
        except Closing:
            detail = "This web server is stopping; ask again."
            return _problem(Unavailable(detail, wait=CLOSING_RETRY_SECONDS), request_id)
        except Exception as error:  # noqa: BLE001 - every failure is a problem document, the unexpected ones are logged
            return _problem(error, request_id)

    async def _read(self, headers: Mapping[str, str], protocol: Any) -> tuple[Asked, ClaimBody]:
        token = bearer_of(headers.get("authorization", ""))
        if token is None:
            raise exceptions.NotAuthenticated
        check_runner_token(token)
        hashed = token_hash(token)
        try:
            body = _parse(await _bounded(headers, protocol))
        except Exception:
            # As in the view, the credential is judged before the body: a dead one is told of nothing else.
            if not await self.desk.is_alive(hashed):
                raise TokenDead from None
            raise
        asked = Asked(hashed, body.request_id, body.slots, body.memory_mib, body.cpu)
        return asked, body


async def _bounded(headers: Mapping[str, str], protocol: Any) -> bytes:
    length = headers.get("content-length", "")
    data = b""
    if not length.isdigit() or int(length) <= BODY_LIMIT_BYTES:
        async for piece in protocol:
            data += piece
            if len(data) > BODY_LIMIT_BYTES:
                break
        else:
            return data
    raise BodyTooLarge(f"The body is larger than the {BODY_LIMIT_BYTES} bytes that this path takes.")


def _parse(data: bytes) -> ClaimBody:
    try:
        return ClaimBody.model_validate(decode_json(data))
    except ValidationError as error:
        raise InvalidInput("The input is wrong.", errors=field_errors(error)) from error


def _of(outcome: Outcome, wait: float) -> Answer:
    body = claim_answer(outcome.runner, outcome.claimed)
    if body is not None:
        return 200, [("content-type", "application/json")], json.dumps(body).encode()
    # Who waited may ask again at once; who was answered at once, after a pause.
    pause = 0.0 if wait > 0 and outcome.runner.mode != "draining" else POLL_SECONDS
    return 204, [(name.lower(), value) for name, value in nothing_headers(outcome.runner, pause).items()], b""


def _problem(error: Exception, request_id: str) -> Answer:
    status, problem, headers = problem_of(error, request_id, path=PATH)
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = CHALLENGE
    listed = [("content-type", CONTENT_TYPE), *((name.lower(), value) for name, value in headers.items())]
    return status, listed, json.dumps(problem).encode()
