"""Django's entry point of the composition root."""

from __future__ import annotations

from django.apps import AppConfig


class ControlplaneConfig(AppConfig):
    """Settings, site, health, metrics, `up`."""

    name = "controlplane"
