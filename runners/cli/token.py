"""`wharfinger token …`: a tenant's own API tokens."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from runners.cli.options import AsJson, Reason, TokenFile, Url, client
from runners.cli.output import err, guarded, print_json, print_table

app = typer.Typer(help="Issue, list and revoke your API tokens.", no_args_is_help=True)

COLUMNS = ("id", "shown", "name", "status", "expires_at", "last_used_at")
DAY_SECONDS = 86_400

Tenant = Annotated[str | None, typer.Option(envvar="WHARFINGER_TENANT", help="Operators: whose tokens.")]


@app.command("list")
def list_tokens(tenant: Tenant = None, url: Url = None, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """List them, newest first; never their secrets."""
    calls = client(url, token_file)
    found = guarded(lambda: list(calls.tokens(tenant=tenant)))
    if as_json:
        print_json(found)
        return
    print_table(COLUMNS, ([one[column] for column in COLUMNS] for one in found))


@app.command()
def issue(  # noqa: PLR0917 - options, each by its name
    name: Annotated[str, typer.Argument(help="What will use it.")],
    days: Annotated[float, typer.Option(min=0, help="Until it expires; 0: until it is revoked.")] = 0,
    tenant: Tenant = None,
    reason: Reason = "",
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Issue one. Its secret is printed once, alone on standard output."""
    calls = client(url, token_file)
    seconds = days * DAY_SECONDS or None
    made = guarded(lambda: calls.issue_token(name, lifetime_seconds=seconds, tenant=tenant, reason=reason))
    if as_json:
        print_json(made)
        return
    sys.stdout.write(made["token"] + "\n")
    err.print(f"token {made['id']}, shown once; keep it where secrets are kept")


@app.command()
def revoke(
    token: Annotated[list[int], typer.Argument(help="Ids of tokens.")],
    tenant: Tenant = None,
    reason: Reason = "",
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Revoke some: refused from the next call on."""
    calls = client(url, token_file)
    for one in token:
        guarded(lambda one=one: calls.revoke_token(one, tenant=tenant, reason=reason))  # type: ignore[misc]
        err.print(f"token {one}: revoked")
