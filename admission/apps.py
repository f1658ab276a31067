"""Django's entry point of the app."""

from django.apps import AppConfig


class AdmissionConfig(AppConfig):
    """See README.md beside this file."""

    name = "admission"

    def ready(self) -> None:
        """Register the checks."""
        from admission import checks  # noqa: F401 - registers itself
