#!/usr/bin/env python
"""Wharfinger's command line for operators."""

import os
import sys

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line
from django.db import Error


def main() -> None:
    """Run one management command."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        # A wrong environment is its reader's to put right: the sentence says how, the stack would only hide it.
        sys.exit(f"error: {error}")
    except Error as error:
        from controlplane.core.sql import is_outage  # noqa: PLC0415 - it needs the settings

        if not is_outage(error):
            raise
        # Of every command, also in its middle. Which statement met it is of no use to whoever typed the command.
        why = " ".join(str(error).split())
        sys.exit(
            f"error: the database does not answer, or broke off ({why}). Check DATABASE_URL and the server. What was "
            "asked for may have been done or not: look, then repeat the command."
        )


if __name__ == "__main__":
    main()
