"""Errors that services raise for their callers: what happened, why, and what to do about it.

The API turns them into problem+json, the command line into an exit code, the admin into a message; each keeps `code`.
"""

from __future__ import annotations

from pydantic import ValidationError


class DomainError(Exception):
    """A request that the rules refuse. Nothing was changed."""

    code = "refused"

    def __init__(self, detail: str, *, hint: str = "", code: str = "") -> None:
        super().__init__(f"{detail} {hint}".strip())
        self.detail = detail
        self.hint = hint
        if code:
            self.code = code


class InvalidInput(DomainError):
    """The input is wrong; `errors` has one entry per wrong field."""

    code = "invalid"

    def __init__(self, detail: str, *, errors: list[dict[str, str]] | None = None, hint: str = "") -> None:
        super().__init__(detail, hint=hint)
        self.errors = errors or []


class NotFound(DomainError):
    """No such thing, or none that the caller may see: the same answer for both."""

    code = "not_found"


class Conflict(DomainError):
    """Somebody else's change, or an earlier one, stands against it."""

    code = "conflict"


class IdempotencyMismatch(DomainError):
    """The same idempotency key came with another body."""

    code = "idempotency_mismatch"


class TryLater(DomainError):
    """A limit refuses now and will not for ever."""

    code = "try_later"

    def __init__(self, detail: str, *, retry_after_seconds: float, code: str = "", hint: str = "") -> None:
        super().__init__(detail, hint=hint, code=code)
        self.retry_after_seconds = retry_after_seconds


def field_errors(error: ValidationError) -> list[dict[str, str]]:
    """Pydantic's findings as field and sentence; never the value, which may hold a secret."""
    return [
        {"field": ".".join(str(part) for part in e["loc"]), "error": str(e["msg"]).removeprefix("Value error, ")}
        for e in error.errors(include_url=False, include_input=False, include_context=False)
    ]
