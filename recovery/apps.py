"""Django's entry point of the app."""

from django.apps import AppConfig


class RecoveryConfig(AppConfig):
    """See README.md beside this file."""

    name = "recovery"

    def ready(self) -> None:
        """Say how operators are told of stuck runs."""
        from leadership.services.intents import register_handler
        from recovery.services import stuck

        register_handler(stuck.KIND, stuck.tell)
        register_handler(stuck.WEBHOOK, stuck.post)
