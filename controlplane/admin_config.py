"""Makes `FleetSite` the default admin site, so that `admin.register` needs no site named."""

from __future__ import annotations

from django.contrib.admin.apps import AdminConfig


class FleetAdminConfig(AdminConfig):
    """Stands in INSTALLED_APPS for `django.contrib.admin`."""

    default_site = "controlplane.site.FleetSite"
