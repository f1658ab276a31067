"""Fill the database of `DATABASE_URL` with the fleet of `world`."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django.setup()

from tests.admin.world import build  # noqa: E402 - models need the registry

build()
