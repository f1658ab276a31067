#!/usr/bin/env python
"""Wharfinger's command line for operators."""

import os
import sys

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line


def main() -> None:
    """Run one management command."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        # A wrong environment is its reader's to put right: the sentence says how, the stack would only hide it.
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
