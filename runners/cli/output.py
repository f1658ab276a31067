"""What every command says, and how it ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from runners.cli.config import ConfigError
from runners.transport import ApiError, BadAddress, BadToken, Unreachable

T = TypeVar("T")

# No markup: names of runs and runners may hold brackets.
err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
_UNAUTHORIZED, _FORBIDDEN = 401, 403


class WrongInput(Exception):
    """What was given is wrong; the message says what and how it should be."""


class Exit(IntEnum):
    """Exit codes of the command line; 69, 75, 77 and 78 as in sysexits.h, 124 as of timeout(1), 130 as of Ctrl-C."""

    DONE = 0
    FAILED = 1
    WRONG_INPUT = 2
    UNREACHABLE = 69
    INTERRUPTED = 75
    CREDENTIAL = 77
    CONFIGURATION = 78
    TIMED_OUT = 124
    CANCELLED = 130


MEANINGS = {
    Exit.DONE: "Done; of what was waited for, everything succeeded.",
    Exit.FAILED: "The server refused, or what was waited for did not succeed and has no exit code of its own.",
    Exit.WRONG_INPUT: "What was given is wrong; nothing of it was sent.",
    Exit.UNREACHABLE: "The server did not answer in time; nothing is known about the effect.",
    Exit.INTERRUPTED: "The run that was waited for was interrupted and is not tried again.",
    Exit.CREDENTIAL: "The token is unknown, revoked or expired, or may not do this.",
    Exit.CONFIGURATION: "No server or no token is configured, or the configuration cannot be read.",
    Exit.TIMED_OUT: "The run that was waited for ran out of its time.",
    Exit.CANCELLED: "The run that was waited for was cancelled.",
}
_ENDINGS = {
    "succeeded": Exit.DONE,
    "timed_out": Exit.TIMED_OUT,
    "cancelled": Exit.CANCELLED,
    "interrupted": Exit.INTERRUPTED,
}
MOST_CODE = 255


def run_exit_code(run: Mapping[str, Any]) -> int:
    """As which this command ends after waiting for a run: as the run did by itself, else as its ending says."""
    code = run["exit_code"]
    if run["state"] == "failed" and code is not None and 0 < code <= MOST_CODE:
        return int(code)
    return _ENDINGS.get(run["state"], Exit.FAILED)


def fail(code: int, text: str, *more: str) -> NoReturn:
    """Say what, why and what to do, and end."""
    err.print(f"error: {text}")
    for line in more:
        if line:
            err.print(f"  {line}")
    raise typer.Exit(code)


def guarded(work: Callable[[], T]) -> T:
    """Run a command's work; known failures become a message and an exit code, never a stack."""
    try:
        return work()
    except (ConfigError, BadAddress, BadToken) as error:
        fail(Exit.CONFIGURATION, str(error))
    except Unreachable as error:
        fail(Exit.UNREACHABLE, str(error), "Is the server running, and is the address right? Then repeat the command.")
    except ApiError as error:
        code = Exit.CREDENTIAL if error.status in (_UNAUTHORIZED, _FORBIDDEN) else Exit.FAILED
        found = [f"{one.get('field', '')}: {one.get('error', '')}" for one in error.errors]
        request = f"request id {error.request_id}" if error.request_id else ""
        fail(code, error.detail, *found, error.hint, request)
    except WrongInput as error:
        fail(Exit.WRONG_INPUT, str(error))


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(value) + "\n")


def print_table(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """A table on a terminal, tab-separated lines elsewhere."""
    if not sys.stdout.isatty():
        for row in rows:
            sys.stdout.write("\t".join("" if cell is None else str(cell) for cell in row) + "\n")
        return
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    Console().print(table)
