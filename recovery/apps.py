"""Django's entry point of the app."""

from django.apps import AppConfig


class RecoveryConfig(AppConfig):
    """See README.md beside this file."""

    name = "recovery"

    def ready(self) -> None:
        """Say how operators are told of stuck runs, and how replicas are read by those below."""
        from admission.driver_facts import register_driver_facts
        from admission.states import DriverKind
        from leadership.services.intents import register_handler
        from recovery.services import facts, stuck

        register_handler(stuck.KIND, stuck.tell)
        register_handler(stuck.WEBHOOK, stuck.post)
        register_driver_facts(DriverKind.REPLICA, facts.read_replica_facts)
