"""First-run objects of the demo: the admin user, three tenants, their tokens. Internal to `up`."""

from __future__ import annotations

import json
import secrets
from datetime import timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandParser

from admission.models import Tenant
from admission.services import quotas, tenants
from controlplane.core.audit import Actor
from controlplane.core.clock import database_now
from controlplane.core.errors import NotFound
from runners.services.enrolment import issue_enrolment_token

ACTOR = Actor("manage.py up")
TENANTS: dict[str, int | None] = {"azure": 2, "coral": 4, "amber": None}
TOKEN_HOURS = 24


class Command(BaseCommand):
    """Prints one JSON object: new secrets are in it and nowhere else."""

    help = "Make the admin user and the demo's tenants, if they are not there, and issue tokens for a day."

    def add_arguments(self, parser: CommandParser) -> None:
        """How many runners will enrol."""
        parser.add_argument("--runners", type=int, default=0)

    def handle(self, *args: Any, **options: Any) -> None:
        """Idempotent but for the tokens."""
        answer: dict[str, Any] = {"admin": self._admin(), "tenants": {}, "enrolment": None}
        expires = database_now() + timedelta(hours=TOKEN_HOURS)
        for slug, quota in TENANTS.items():
            tenant = self._tenant(slug, quota)
            _, secret = tenants.issue_token(tenant, "demo", actor=ACTOR, expires_at=expires)
            answer["tenants"][slug] = {"token": secret, "quota": quota}
        if options["runners"]:
            _, answer["enrolment"] = issue_enrolment_token(
                actor=ACTOR, name="demo", uses=options["runners"], lifetime=timedelta(hours=1)
            )
        self.stdout.write(json.dumps(answer))

    def _admin(self) -> dict[str, str] | None:
        users = get_user_model().objects
        if users.filter(is_superuser=True).exists():
            return None
        password = secrets.token_urlsafe(12)
        users.create_superuser("admin", password=password)
        return {"username": "admin", "password": password}

    def _tenant(self, slug: str, quota: int | None) -> Tenant:
        try:
            return tenants.get_tenant(slug)
        except NotFound:
            tenant = tenants.create_tenant(slug, name=slug.capitalize(), actor=ACTOR)
            if quota is not None:
                quotas.set_quota(tenant, quota, actor=ACTOR, reason="demo")
            return tenant
