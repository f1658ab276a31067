"""Bearer credentials: random, with a prefix that secret scanners find, stored only as SHA-256, shown once.

A slow password hash would add nothing: 256 random bits cannot be guessed, and every request pays for the check.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final

TENANT: Final = "wht"
OPERATOR: Final = "who"
RUNNER: Final = "whr"
ENROLMENT: Final = "whe"
JOB: Final = "whj"

SHOWN_CHARACTERS: Final = 10


def new_token(prefix: str) -> str:
    """A new secret, e.g. `wht_…`."""
    return f"{prefix}_{secrets.token_urlsafe(32)}"


def token_hash(token: str) -> bytes:
    """What is stored and looked up: 32 bytes."""
    return hashlib.sha256(token.encode()).digest()


def shown_part(token: str) -> str:
    """The part that lists may show, enough to recognise a token by."""
    return token[:SHOWN_CHARACTERS]


def job_token(key: str, *, run: int, epoch: int, runner: int) -> str:
    """The credential of one hold on one run: an HMAC, so nothing is stored and it ends with the epoch."""
    message = f"{run}.{epoch}.{runner}".encode()
    return f"{JOB}_{hmac.new(key.encode(), message, hashlib.sha256).hexdigest()}"
