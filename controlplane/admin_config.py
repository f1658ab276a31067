"""Makes `FleetSite` the default admin site, so that `admin.register` needs no site named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.contrib import admin
from django.contrib.admin.apps import SimpleAdminConfig
from django.contrib.admin.checks import check_admin_app, check_dependencies
from django.core import checks


class FleetAdminConfig(SimpleAdminConfig):
    """Stands in INSTALLED_APPS for `django.contrib.admin`.

    The admin's modules and their skin are loaded with the URLs, not at every start: a replica or a qcluster shows no
    page, and would pay for them a quarter of its start and of its memory.
    """

    default_site = "controlplane.site.FleetSite"

    def ready(self) -> None:
        """In place of Django's own registration, which looks at what is registered at that time: nothing."""
        checks.register(check_dependencies, checks.Tags.admin)
        checks.register(check_registered, checks.Tags.admin)


def check_registered(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Django's checks of the admin classes, all of which are loaded first."""
    admin.autodiscover()
    return check_admin_app(app_configs, **kwargs)
