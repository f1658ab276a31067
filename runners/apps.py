"""Django's entry point of the app."""

from django.apps import AppConfig


class RunnersConfig(AppConfig):
    """See README.md beside this file."""

    name = "runners"

    def ready(self) -> None:
        """Say how runners and secrets are looked up by those below, and what becomes of a tenant's own."""
        from admission.belongings import register_belonging
        from admission.driver_facts import register_driver_facts
        from admission.references import register_reference_check
        from admission.states import DriverKind
        from runners.services.belongings import OWN_RUNNERS
        from runners.services.facts import read_runner_facts
        from runners.services.secrets import FIELD, REGISTRY_FIELD, unknown_names, unknown_registry_names

        register_driver_facts(DriverKind.RUNNER, read_runner_facts)
        register_reference_check(FIELD, unknown_names)
        register_reference_check(REGISTRY_FIELD, unknown_registry_names)
        register_belonging(OWN_RUNNERS)
