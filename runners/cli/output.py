"""What every command says, and how it ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from runners.cli.config import ConfigError
from runners.transport import ApiError, BadAddress, Unreachable

T = TypeVar("T")

err = Console(stderr=True, highlight=False, soft_wrap=True)
_UNAUTHORIZED, _FORBIDDEN = 401, 403


class WrongInput(Exception):
    """What was given is wrong; the message says what and how it should be."""


class Exit(IntEnum):
    """Exit codes of the command line; 69, 77 and 78 as in sysexits.h."""

    DONE = 0
    FAILED = 1
    WRONG_INPUT = 2
    UNREACHABLE = 69
    CREDENTIAL = 77
    CONFIGURATION = 78


def fail(code: Exit, text: str, *more: str) -> NoReturn:
    """Say what, why and what to do, and end."""
    err.print(f"error: {text}", markup=False)
    for line in more:
        if line:
            err.print(f"  {line}", markup=False)
    raise typer.Exit(code)


def guarded(work: Callable[[], T]) -> T:
    """Run a command's work; known failures become a message and an exit code, never a stack."""
    try:
        return work()
    except (ConfigError, BadAddress) as error:
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
