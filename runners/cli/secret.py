"""`wharfinger secret …`: a tenant's secrets. A value comes from a prompt, standard input or a file, never argv."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from runners.cli.options import AsJson, Reason, TokenFile, Url, client
from runners.cli.output import WrongInput, err, guarded, print_json, print_table

app = typer.Typer(help="Secrets: runs that name one get it as an environment variable.", no_args_is_help=True)

COLUMNS = ("name", "tenant", "updated_at", "updated_by")

Name = Annotated[str, typer.Argument(help="Its name, as runs have it in `secrets`.")]
Tenant = Annotated[str | None, typer.Option(help="For operators: whose.")]


@app.command("set")
def set_secret(  # noqa: PLR0917 - options, each by its name
    name: Name,
    file: Annotated[Path | None, typer.Option(help="Read the value from this file.")] = None,
    tenant: Tenant = None,
    reason: Reason = "",
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Set a secret. The value is asked for, or read from standard input or --file (without one line end at its end).

    There is no option for the value: others on this machine could read it.
    """
    value = guarded(lambda: _value(file))
    calls = client(url, token_file)
    created = guarded(lambda: calls.set_secret(name, value, tenant=tenant, reason=reason))["created"]
    err.print(f"{name}: {'set' if created else 'has a new value; runs under way keep what they were given'}")


def _value(file: Path | None) -> str:
    if file is None and sys.stdin.isatty():
        return str(typer.prompt("Value", hide_input=True, confirmation_prompt=True))
    try:
        raw = sys.stdin.buffer.read() if file is None else file.read_bytes()
        text = raw.decode()
    except OSError as error:
        raise WrongInput(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        # Not chained: that error carries the bytes.
        raise WrongInput("the value is not text in UTF-8; encode it, for example with base64") from None
    return text.removesuffix("\n").removesuffix("\r")


@app.command("list")
def list_secrets(
    tenant: Tenant = None, url: Url = None, token_file: TokenFile = None, as_json: AsJson = False
) -> None:
    """List names. Values are shown to nobody."""
    calls = client(url, token_file)
    found = guarded(lambda: list(calls.secrets(tenant=tenant)))
    if as_json:
        print_json(found)
        return
    print_table(COLUMNS, ([one[column] for column in COLUMNS] for one in found))


@app.command("delete")
def delete_secret(
    name: Name, tenant: Tenant = None, reason: Reason = "", url: Url = None, token_file: TokenFile = None
) -> None:
    """Delete a secret. Queued runs that name it fail with the reason when their turn comes."""
    calls = client(url, token_file)
    guarded(lambda: calls.delete_secret(name, tenant=tenant, reason=reason))
    err.print(f"{name}: deleted")
