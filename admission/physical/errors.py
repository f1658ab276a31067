"""Why a call gave no answer. None of these is permission: who catches one keeps what it has and starts nothing."""

from __future__ import annotations


class PhysicalError(Exception):
    """Physical admission could not be asked, or may not be used as things stand."""


class Unavailable(PhysicalError):
    """Redis was not reached or its answer was lost: the script may or may not have run, now or later.

    Each call may be repeated with the same arguments.
    """


class Refused(PhysicalError):
    """This server or this configuration is not one that admission may use; the message says what to change."""


class NotVerified(PhysicalError):
    """Containers without a token are left, or could not be looked for: nothing is admitted until they are gone."""


class Superseded(Refused):
    """This process has an older generation than the one in force."""
