"""Job tokens: the credential of one hold on one run. Nothing is stored; it ends with the epoch (rule Q2)."""

from __future__ import annotations

import hmac

from django.conf import settings

from controlplane.core.tokens import job_token

MAX_TOKEN = 200


def issue_job_token(*, run: int, epoch: int, runner: int) -> str:
    """Given with the assignment."""
    return job_token(settings.SECRET_KEY, run=run, epoch=epoch, runner=runner)


def is_job_token(token: str, *, run: int, epoch: int, runner: int) -> bool:
    """Whether this is the token of that hold; takes as long for a wrong one as for the right one."""
    if len(token) > MAX_TOKEN or not token.isascii():
        return False
    return hmac.compare_digest(token, issue_job_token(run=run, epoch=epoch, runner=runner))
