"""Runner tokens: another class on other paths than tenants' tokens, so that neither opens the other's."""

from __future__ import annotations

from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from controlplane.api.bearer import bearer
from controlplane.core import tokens
from controlplane.core.logs import bind
from runners.services.fleet import RunnerIdentity, find_runner

CHALLENGE = 'Bearer realm="wharfinger runner"'


class RunnerPrincipal:
    """The calling runner."""

    is_authenticated = True
    is_active = True

    def __init__(self, runner: RunnerIdentity) -> None:
        self.runner = runner

    def has_perm(self, permission: str) -> bool:
        """A runner has no operator's permission."""
        return False


class RunnerAuthentication(BaseAuthentication):
    """`Bearer whr_…`: one look-up; a revoked token is unknown from this call on."""

    def authenticate(self, request: Request) -> tuple[RunnerPrincipal, None] | None:
        """Who calls; None when nobody says so."""
        token = bearer(request)
        if token is None:
            return None
        check_runner_token(token)
        runner = find_runner(token)
        if runner is None:
            raise token_dead()
        bind(runner=runner.name)
        return RunnerPrincipal(runner), None

    def authenticate_header(self, request: Request) -> str:
        """What a 401 asks for."""
        return CHALLENGE


def check_runner_token(token: str) -> None:
    """Refuse what is no runner's token by its look, without asking the database."""
    if not token.startswith(f"{tokens.RUNNER}_"):
        raise AuthenticationFailed("This path takes a runner's token.", code="wrong_token")


def token_dead() -> AuthenticationFailed:
    """The refusal of an unknown or revoked token."""
    return AuthenticationFailed("The runner's token is unknown or revoked; enrol anew.", code="bad_token")
