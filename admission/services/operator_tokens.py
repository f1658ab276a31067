"""API tokens of operators: they act with the permissions that their user has at the time of each call."""

from __future__ import annotations

from datetime import datetime

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from admission.models import ApiToken
from controlplane.core import tokens
from controlplane.core.audit import Actor, record


def issue_operator_token(
    user: User, name: str, *, actor: Actor, expires_at: datetime | None = None
) -> tuple[ApiToken, str]:
    """A new operator token; the secret is returned here and nowhere else."""
    secret = tokens.new_token(tokens.OPERATOR)
    with transaction.atomic():
        token = ApiToken.objects.create(
            user=user,
            name=name,
            shown=tokens.shown_part(secret),
            hash=tokens.token_hash(secret),
            expires_at=expires_at,
        )
        record("issue_token", "user", user, actor=actor, after={"token": token.shown, "name": name})
    return token, secret


def is_operator_token(token: str) -> bool:
    """Whether this is a living token of an active operator. For readers of what every operator may see."""
    return (
        ApiToken.objects.filter(Q(expires_at__isnull=True) | Q(expires_at__gt=Now()), hash=tokens.token_hash(token))
        .filter(revoked_at__isnull=True, user__is_active=True)
        .exists()
    )
