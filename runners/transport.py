"""HTTP to the control plane, for agents, the command line and scripts. Plain Python.

Three ways a call can end: an answer, a refusal (`ApiError`, the server's problem document), or `Unreachable`, after
which nothing is known about the effect.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import IO, Any
from urllib.parse import urlsplit

import requests
from requests.auth import AuthBase

PREFIX = "/api/v1"
CONNECT_SECONDS = 5.0
READ_SECONDS = 60.0
MOST_SHOWN = 300
_OUTAGE = (502, 503, 504)


class BadAddress(Exception):
    """This is no address of a control plane."""


class BadToken(Exception):
    """This cannot be a token: no header can carry it."""


class Unreachable(Exception):
    """No usable answer: nothing listens, the connection broke, the server is down or says something else than JSON.

    `sent` is false when certainly nothing was delivered: even a call that must not happen twice may be repeated.
    """

    def __init__(self, message: str, *, sent: bool = True, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.sent = sent
        self.retry_after = retry_after


class ApiError(Exception):
    """The server's refusal."""

    def __init__(self, status: int, problem: Mapping[str, Any], retry_after: float | None = None) -> None:
        self.status = status
        self.problem = problem
        self.code = str(problem.get("code", ""))
        self.detail = str(problem.get("detail") or f"the server answered {status}")
        self.hint = str(problem.get("hint", ""))
        self.errors: list[dict[str, str]] = list(problem.get("errors") or [])
        self.request_id = str(problem.get("request_id", ""))
        self.retry_after = retry_after
        super().__init__(f"{self.detail} {self.hint}".strip())


class _Bearer(AuthBase):
    """An object, not a header: else `requests` would prefer what a .netrc file says of this host."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class Transport:
    """Calls one control plane with one token. Used by many threads; each has a connection of its own."""

    def __init__(self, url: str, token: str = "", *, read_seconds: float = READ_SECONDS) -> None:
        if not _is_address(url):
            raise BadAddress(
                f"{url!r} is no address of a control plane; it looks like https://host or http://host:8000"
            )
        if not (token.isascii() and token.isprintable()) or " " in token:
            # Said without the token: what was taken for one may be another secret, a key of several lines.
            raise BadToken("This is no token: a token is one line of letters, digits and _, as it was shown once.")
        self.url = url.rstrip("/")
        self.token = token
        self._timeout = (CONNECT_SECONDS, read_seconds)
        self._local = threading.local()

    def call(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        data: bytes | IO[bytes] | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        read_seconds: float | None = None,
        stream: bool = False,
    ) -> requests.Response:
        """Send one request; returns the answer of a success. With `stream` its body is read by the caller.

        Raises:
            ApiError: the server refused.
            Unreachable: no usable answer.
        """
        address = path if path.startswith(("http://", "https://")) else f"{self.url}{PREFIX}{path}"
        if not address.startswith(f"{self.url}/"):
            # A page's `next` comes from the server; the token goes nowhere else.
            raise Unreachable(f"{address} is not below {self.url}")
        try:
            response = self._session().request(
                method,
                address,
                json=json,
                data=data,
                params=params,
                headers=dict(headers or {}),
                auth=_Bearer(self.token),
                timeout=self._timeout if read_seconds is None else (CONNECT_SECONDS, read_seconds),
                stream=stream,
                allow_redirects=False,
            )
        except requests.ConnectionError as error:
            sent = not isinstance(error, requests.exceptions.ConnectTimeout) and "refused" not in str(error)
            raise Unreachable(f"{self.url} does not answer: {_short(error)}", sent=sent) from error
        except requests.RequestException as error:
            raise Unreachable(f"{self.url} gave no usable answer: {_short(error)}") from error
        return _judged(response)

    def json(self, method: str, path: str, **parts: Any) -> Any:
        """As `call`, decoded; None for an empty answer."""
        response = self.call(method, path, **parts)
        if response.status_code == requests.codes.no_content:
            return None
        return decoded(response)

    def close(self) -> None:
        """Close the calling thread's connection."""
        self._session().close()

    def _session(self) -> requests.Session:
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = self._make_session()
        return session

    def _make_session(self) -> requests.Session:
        return requests.Session()


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        # Port 0 reaches nobody; one that is no port at all is told by an error of its own, like a broken bracket.
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def decoded(response: requests.Response) -> Any:
    """The JSON of a success; an undecodable one counts as no answer."""
    try:
        return response.json()
    except ValueError as error:
        raise Unreachable(f"{response.url} answered {response.status_code} with something else than JSON") from error


def _judged(response: requests.Response) -> requests.Response:
    if response.ok and not response.is_redirect:
        return response
    retry_after = _seconds(response.headers.get("Retry-After"))
    problem: Any = None
    if "json" in response.headers.get("Content-Type", ""):
        try:
            problem = response.json()
        except ValueError:
            problem = None
    if response.status_code in _OUTAGE or not isinstance(problem, dict):
        text = f"{response.url} answered {response.status_code} {response.reason}"
        raise Unreachable(text, retry_after=retry_after)
    raise ApiError(response.status_code, problem, retry_after)


def _seconds(text: str | None) -> float | None:
    return float(text) if text and text.isascii() and text.isdigit() else None


def _short(error: Exception) -> str:
    text = str(error)
    return text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "…"
