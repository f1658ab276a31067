"""What the verbs of `manage.py` ask and understand."""

from __future__ import annotations

import sys
from datetime import datetime

from django.core.management.base import CommandError
from django.utils.dateparse import parse_datetime


def confirm(what: str, count: int, *, yes: bool) -> None:
    """Ask for the exact count, as the admin does; without a terminal `--yes` must say it. Raises CommandError."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(f"This would {what}. There is nobody to ask: give --yes.")
    answer = input(f"This will {what}. Type {count} to do it: ")
    if answer.strip() != str(count):
        raise CommandError("Nothing was done.")


def why(given: str) -> str:
    """The reason of a verb, as the admin and the API demand it too. Raises CommandError."""
    if not (reason := given.strip()):
        raise CommandError("Say why: --reason … (it goes to the audit log).")
    return reason


def moment(text: str) -> datetime:
    """A moment with its time zone. Raises CommandError."""
    try:
        found = parse_datetime(text)
    except ValueError as error:
        raise CommandError(f"--until {text!r}: {error}") from error
    if found is None or found.tzinfo is None:
        raise CommandError(f"--until {text!r} is no moment with its time zone, such as 2030-01-31T08:00:00Z.")
    return found
