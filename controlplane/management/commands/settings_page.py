"""The page of settings, from the settings themselves."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from controlplane.core.conf import NAMES

GENERAL = (
    (
        "DATABASE_URL",
        "postgresql://wharfinger@127.0.0.1:5432/wharfinger",
        "PostgreSQL 15 to 18; may be PgBouncer in transaction mode.",
    ),
    ("DATABASE_DIRECT_URL", "", "The server itself, where DATABASE_URL is a pooler: nothing is prepared then."),
    ("REDIS_URL", "", "Redis 7 or Valkey with AOF and `noeviction`."),
    ("SECRET_KEY, SECRET_KEY_FILE", "", "The same for every process; server processes refuse to start without."),
    ("ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]", "Names that the web server answers to."),
    ("CSRF_TRUSTED_ORIGINS", "", "Origins of the admin behind a proxy, e.g. https://wharf.example."),
    ("HTTPS", "false", "Cookies and redirects as behind TLS."),
    ("TRUST_PROXY", "false", "Believe X-Forwarded-Proto."),
    ("EMAIL_URL", "consolemail://", "How notifications leave: smtp://user:password@host:port."),
    ("DEFAULT_FROM_EMAIL", "wharfinger@localhost", "Their sender."),
    ("LOG_LEVEL", "INFO", "Of the JSON lines on standard error."),
    ("DOCKER_HOST", "unix:///var/run/docker.sock", "The one daemon that a driver uses."),
    ("WHARFINGER_HOME", "", "Where `up` keeps its databases and logs."),
)

HEAD = """# Settings

Environment variables. This page is written by `manage.py settings_page`; a test compares the two.
Values that contradict each other or would break a rule are refused at start, with the variable to change.

| variable | default | meaning |
|---|---|---|
"""


def settings_page() -> str:
    """The whole page."""
    lines = [f"| `{name}` | {_shown(default)} | {meaning} |" for name, default, meaning in GENERAL]
    lines += [f"| `{name}` | {_shown(f.default)} | {f.metadata['doc']} |" for name, f in NAMES.items()]
    return HEAD + "\n".join(lines) + "\n"


def _shown(default: object) -> str:
    return "" if default == "" else f"`{default}`"


class Command(BaseCommand):
    """`manage.py settings_page > docs/settings.md`."""

    help = "Print docs/settings.md."

    def handle(self, *args: Any, **options: Any) -> None:
        """Print."""
        self.stdout.write(settings_page(), ending="")
