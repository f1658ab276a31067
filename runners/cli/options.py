"""Options that every command of a tenant or operator takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from runners.cli.config import choose
from runners.cli.output import guarded
from runners.client import Client

Url = Annotated[str | None, typer.Option(envvar="WHARFINGER_URL", help="Address of the control plane.")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="File with the token; else WHARFINGER_TOKEN(_FILE), else login's.")
]
Reason = Annotated[str, typer.Option(help="For the audit log; operators must say it.")]
AsJson = Annotated[bool, typer.Option("--json", envvar="WHARFINGER_JSON", help="JSON on standard output.")]


def client(url: str | None, token_file: Path | None) -> Client:
    """The server that flags, environment or the stored login name."""
    return guarded(lambda: Client(*choose(url, token_file)))
