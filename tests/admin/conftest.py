"""A fleet at work, and people with and without rights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.test import Client

from controlplane.roles import install_roles
from tests.admin import world as worlds


@pytest.fixture
def world(db: None) -> dict[str, Any]:
    return worlds.build(runs=24)


@pytest.fixture
def sign_in(db: None) -> Callable[..., Client]:
    """`sign_in("viewer")`: a client of a member of that role; without one, of a superuser."""
    # A transactional test elsewhere may have flushed what the migration installed.
    install_roles(Group, Permission)

    def sign_in(role: str | None = None) -> Client:
        user = User.objects.create_user(f"someone-{User.objects.count()}", is_staff=True, is_superuser=role is None)
        if role:
            user.groups.add(Group.objects.get(name=role))
        client = Client(raise_request_exception=True)
        client.force_login(user)
        return client

    return sign_in


@pytest.fixture
def admin(sign_in: Callable[..., Client]) -> Client:
    return sign_in()
