"""The kernel below every app."""

from django.apps import AppConfig


class CoreConfig(AppConfig):
    """Audit log and settings checks."""

    name = "controlplane.core"
    label = "core"
    verbose_name = "Audit"

    def ready(self) -> None:
        """Register the settings checks."""
        from controlplane.core import checks  # noqa: F401
