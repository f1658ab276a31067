"""`wharfinger artifacts`: what a run kept, listed or fetched."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from runners.agent.artifact_names import wrong_name
from runners.cli.options import AsJson, TokenFile, Url, client
from runners.cli.output import Exit, WrongInput, err, fail, guarded, print_json, print_table
from runners.client import Client

COLUMNS = ("name", "size", "sha256", "stored_at")
PIECE_BYTES = 1 << 20


def artifacts(  # noqa: PLR0917 - options, each by its name
    run: Annotated[int, typer.Argument(help="The run's id.")],
    download: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Fetch all of them into this directory.")
    ] = None,
    attempt: Annotated[int | None, typer.Option(min=1, help="Which attempt; without it the latest.")] = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """List the files that a run kept, or fetch them. What was fetched is compared with the sum that was stored."""
    calls = client(url, token_file)
    found = guarded(lambda: calls.artifacts(run, attempt=attempt))
    if download is not None:
        wrong = [one for one in found["results"] if not _fetched(calls, found, one, download)]
        if wrong:
            fail(Exit.FAILED, f"{len(wrong)} of {len(found['results'])} files are not fetched")
    if as_json:
        print_json(found)
    elif download is None:
        print_table(COLUMNS, ([one[column] for column in COLUMNS] for one in found["results"]))
    until = f", kept until {found['kept_until']}" if found["kept_until"] else ""
    err.print(f"run {run}, attempt {found['attempt']}: {len(found['results'])} files{until}")


def _fetched(calls: Client, found: dict[str, Any], one: dict[str, Any], directory: Path) -> bool:
    name = one["name"]
    if wrong := wrong_name(name):
        # A server that is not ours to trust must not choose where we write.
        err.print(f"{name!a} {wrong}")
        return False
    guarded(lambda: _write(calls, found, one, directory))
    err.print(f"{directory / name}")
    return True


def _write(calls: Client, found: dict[str, Any], one: dict[str, Any], directory: Path) -> None:
    target = directory / one["name"]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _refuse_link(directory, target)
        part = target.with_name(f".{target.name}.part")
        part.unlink(missing_ok=True)
        digest = hashlib.sha256()
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with os.fdopen(handle, "wb") as file:
            for piece in calls.artifact(found["run"], one["name"], attempt=found["attempt"]):
                file.write(piece)
                digest.update(piece)
        if digest.hexdigest() != one["sha256"]:
            part.unlink()
            raise WrongInput(f"{target}: what came is not what was stored; repeat the command")
        part.replace(target)
    except OSError as error:
        raise WrongInput(f"{target} cannot be written: {error.strerror}") from error


def _refuse_link(directory: Path, target: Path) -> None:
    """Nothing is written through a link below the directory that was named."""
    inside = [place for place in target.parents if place.is_relative_to(directory) and place != directory]
    if link := next((place for place in inside if place.is_symlink()), None):
        raise WrongInput(f"{link} is a link; nothing is written through it")
