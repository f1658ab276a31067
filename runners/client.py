"""A tenant's client of the control plane: what the command line uses, and any script may."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import requests

from runners.agent.backoff import Backoff
from runners.transport import ApiError, Transport, Unreachable

T = TypeVar("T")

TERMINAL = frozenset({"succeeded", "failed", "cancelled", "timed_out", "interrupted"})
PATIENCE_SECONDS = 30.0
POLL_SECONDS = 0.5
LONGEST_POLL_SECONDS = 5.0
# What is lost of a piece when the connection breaks is fetched again.
PIECE_BYTES = 1 << 16
MOST_BREAKS = 5
_TOO_MANY = 429


@dataclass(frozen=True, slots=True)
class LogPart:
    """A piece of a log and where the log stands."""

    data: bytes
    attempt: int
    size: int
    finished: bool
    truncated: bool
    state: str
    missing: int = 0
    """Bytes at its end that were not delivered; they may yet come while it is not finished."""


class Client:
    """Calls with one token. What may be repeated is, for `patience` seconds, through outages and 429."""

    def __init__(self, url: str, token: str, *, patience: float = PATIENCE_SECONDS) -> None:
        self.transport = Transport(url, token)
        self._patience = patience

    def submit(self, spec: Mapping[str, Any], *, key: str | None = None) -> dict[str, Any]:
        """Submit one run: {"id", "outcome"}. Repeated through an outage only with an idempotency key."""
        headers = {"Idempotency-Key": key} if key else {}

        def send() -> dict[str, Any]:
            answer: dict[str, Any] = self.transport.json("POST", "/runs", json=spec, headers=headers)
            return answer

        return self._patiently(send) if key else send()

    def submit_batch(self, name: str, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Submit up to 1,000 items {"spec", "idempotency_key"}: {"id", "items": [{"outcome", "id", "errors"}], …}."""
        keyed = all(item.get("idempotency_key") for item in items)

        def send() -> dict[str, Any]:
            body = {"name": name, "runs": list(items)}
            answer: dict[str, Any] = self.transport.json("POST", "/batches", json=body)
            return answer

        return self._patiently(send) if keyed else send()

    def batch(self, batch: int) -> dict[str, Any]:
        """A batch; `counts` has its runs by state."""
        found: dict[str, Any] = self._get(f"/batches/{batch}")
        return found

    def runs(self, *, most: int | None = None, **filters: Any) -> Iterator[dict[str, Any]]:
        """Runs, newest first, page by page; filters as in the API (state, batch, batch_name, name)."""
        return self._pages("/runs", most, filters)

    def tokens(self, *, tenant: str | None = None) -> Iterator[dict[str, Any]]:
        """API tokens, newest first; an operator names whose."""
        return self._pages("/tokens", None, {"tenant": tenant})

    def issue_token(
        self, name: str, *, lifetime_seconds: float | None = None, tenant: str | None = None, reason: str = ""
    ) -> dict[str, Any]:
        """A new one; `token` is its secret, here and nowhere else. Never repeated: each call makes another.

        An operator says why, here as in all that follows.
        """
        body = {"name": name, "lifetime_seconds": lifetime_seconds, "reason": reason}
        answer: dict[str, Any] = self.transport.json("POST", "/tokens", json=body, params=_named(tenant))
        return answer

    def revoke_token(self, token: int, *, tenant: str | None = None, reason: str = "") -> None:
        """Refused from the next call on."""
        params = {**_named(tenant), "reason": reason}
        self._patiently(lambda: self.transport.json("DELETE", f"/tokens/{token}", params=params))

    def limits(self, *, most: int | None = None, **filters: Any) -> Iterator[dict[str, Any]]:
        """Limits of concurrency keys and harnesses; filters as in the API (scope, key, tenant)."""
        return self._pages("/limits", most, filters)

    def set_limit(self, key: str, limit: int, *, tenant: str | None = None, reason: str = "") -> dict[str, Any]:
        """With a tenant its concurrency key's limit, without one a harness's. For operators."""
        body = {
            "scope": "key" if tenant else "harness",
            "key": key,
            "tenant": tenant,
            "limit": limit,
            "reason": reason,
        }

        def send() -> dict[str, Any]:
            answer: dict[str, Any] = self.transport.json("PUT", "/limits", json=body)
            return answer

        return self._patiently(send)

    def secrets(self, *, most: int | None = None, **filters: Any) -> Iterator[dict[str, Any]]:
        """Secrets by name; their values are shown to nobody."""
        return self._pages("/secrets", most, filters)

    def set_secret(self, name: str, value: str, *, tenant: str | None = None, reason: str = "") -> dict[str, Any]:
        """Set a secret: {"name", "created"}. Operators name the tenant."""

        def send() -> dict[str, Any]:
            body = {"value": value, "reason": reason}
            params = {"tenant": tenant} if tenant else None
            answer: dict[str, Any] = self.transport.json(
                "PUT", f"/secrets/{quote(name, safe='')}", json=body, params=params
            )
            return answer

        return self._patiently(send)

    def delete_secret(self, name: str, *, tenant: str | None = None, reason: str = "") -> None:
        """Delete a secret."""
        params = {**_named(tenant), "reason": reason}
        self.transport.json("DELETE", f"/secrets/{quote(name, safe='')}", params=params)

    def run(self, run: int) -> dict[str, Any]:
        """One run with its attempts and timeline."""
        found: dict[str, Any] = self._get(f"/runs/{run}")
        return found

    def why(self, run: int) -> dict[str, Any]:
        """Why a queued run waits; for others, that it does not."""
        found: dict[str, Any] = self._get(f"/runs/{run}/why")
        return found

    def cancel(self, run: int, reason: str = "") -> dict[str, Any]:
        """Cancel; the answer's state says whether it ended already or its driver was asked to stop it."""

        def send() -> dict[str, Any]:
            answer: dict[str, Any] = self.transport.json("POST", f"/runs/{run}/cancel", json={"reason": reason})
            return answer

        return self._patiently(send)

    def log(self, run: int, *, offset: int = 0, attempt: int | None = None) -> LogPart:
        """Output from `offset` on, of the latest attempt unless one is named."""
        params = {"offset": offset, **({"attempt": attempt} if attempt else {})}
        response = self._patiently(lambda: self.transport.call("GET", f"/runs/{run}/logs", params=params))
        head = response.headers
        return LogPart(
            data=response.content,
            attempt=int(head["Log-Attempt"]),
            size=int(head["Log-Size"]),
            finished=head["Log-Finished"] == "true",
            truncated=head["Log-Truncated"] == "true",
            state=head["Run-State"],
            missing=int(head.get("Log-Missing", 0)),
        )

    def artifacts(self, run: int, *, attempt: int | None = None) -> dict[str, Any]:
        """What an attempt kept: {"attempt", "kept_until", "results": [{"name", "size", "sha256", …}]}."""
        found: dict[str, Any] = self._get(f"/runs/{run}/artifacts", {"attempt": attempt} if attempt else None)
        return found

    def artifact(self, run: int, name: str, *, attempt: int | None = None) -> Iterator[bytes]:
        """The bytes of one kept file, in pieces; compare them with its `sha256`. Goes on where a connection broke."""
        path = f"/runs/{run}/artifacts/{quote(name)}"
        params = {"attempt": attempt} if attempt else None

        def begun(headers: Mapping[str, str]) -> requests.Response:
            call = self.transport.call
            return self._patiently(lambda: call("GET", path, params=params, headers=headers, stream=True))

        got, etag, breaks = 0, "", 0
        while True:
            response = begun({"Range": f"bytes={got}-", "If-Range": etag} if got else {})
            if got and response.status_code != requests.codes.partial_content:
                response.close()
                raise Unreachable(f"{self.transport.url} broke off, and does not go on from byte {got}")
            etag = response.headers.get("ETag", "")
            try:
                with response:
                    for piece in response.iter_content(PIECE_BYTES):
                        got += len(piece)
                        yield piece
                return
            except requests.RequestException as error:
                breaks += 1
                if breaks > MOST_BREAKS or not etag:
                    raise Unreachable(f"{self.transport.url} broke off: {error}") from error

    def follow_log(self, run: int, *, follow: bool = True, attempt: int | None = None) -> Iterator[LogPart]:
        """Output as it comes, of each attempt in turn, until the run has ended (or what is there, once)."""
        attempt, offset, pause = attempt or 0, 0, POLL_SECONDS
        while True:
            part = self.log(run, offset=offset, attempt=attempt or None)
            if attempt == 0 and part.attempt:
                attempt = part.attempt
            offset += len(part.data)
            yield part
            if offset < part.size:
                continue
            if not follow or part.state in TERMINAL:
                return
            if part.finished and (newer := self.log(run).attempt) != attempt:
                attempt, offset = newer, 0
                continue
            pause = POLL_SECONDS if part.data else min(pause * 1.5, LONGEST_POLL_SECONDS / 2)
            time.sleep(pause)

    def wait(self, run: int) -> dict[str, Any]:
        """Until the run has ended."""
        pause = POLL_SECONDS / 2
        while (found := self.run(run))["state"] not in TERMINAL:
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_POLL_SECONDS)
        return found

    def wait_batch(self, batch: int, on_progress: Callable[[Mapping[str, int]], None]) -> dict[str, int]:
        """Until every run of the batch has ended; `on_progress` gets the counts by state at each look."""
        pause = POLL_SECONDS / 2
        while True:
            counts: dict[str, int] = self.batch(batch)["counts"]
            on_progress(counts)
            if not set(counts) - TERMINAL:
                return counts
            time.sleep(pause)
            pause = min(pause * 1.2, LONGEST_POLL_SECONDS)

    def _pages(self, first: str, most: int | None, filters: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        size = 500 if most is None else min(most, 500)
        params: dict[str, Any] | None = {**{k: v for k, v in filters.items() if v is not None}, "limit": size}
        path: str | None = first
        left = most
        while path:
            page = self._get(path, params)
            for row in page["results"]:
                if left is not None and left <= 0:
                    return
                left = None if left is None else left - 1
                yield row
            path, params = page["next"], None

    def _get(self, path: str, params: Mapping[str, Any] | None = None) -> Any:
        return self._patiently(lambda: self.transport.json("GET", path, params=params))

    def _patiently(self, send: Callable[[], T]) -> T:
        until = time.monotonic() + self._patience
        backoff = Backoff(0.2, 5.0)
        while True:
            try:
                return send()
            except (Unreachable, ApiError) as error:
                if isinstance(error, ApiError) and error.status != _TOO_MANY:
                    raise
                pause = max(backoff.delay(), error.retry_after or 0.0)
                if time.monotonic() + pause >= until:
                    raise
            time.sleep(pause)


def _named(tenant: str | None) -> dict[str, str]:
    return {"tenant": tenant} if tenant else {}
