"""Django's entry point of the app."""

from django.apps import AppConfig


class LeadershipConfig(AppConfig):
    """See README.md beside this file."""

    name = "leadership"
