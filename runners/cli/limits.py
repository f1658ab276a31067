"""`wharfinger limits` and `wharfinger set-limit`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from runners.cli.options import AsJson, TokenFile, Url, client
from runners.cli.output import guarded, print_json, print_table

COLUMNS = ("scope", "tenant", "key", "in_flight", "limit")


def limits(  # noqa: PLR0917 - options, each by its name
    scope: Annotated[str | None, typer.Option(help="key or harness.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's keys (operators).")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """List the limits of concurrency keys and harnesses, with what is in flight under them."""
    calls = client(url, token_file)
    found = guarded(lambda: list(calls.limits(most=limit, scope=scope, tenant=tenant)))
    if as_json:
        print_json(found)
        return
    print_table(COLUMNS, ([one[column] for column in COLUMNS] for one in found))


def set_limit(  # noqa: PLR0917 - options, each by its name
    key: Annotated[str, typer.Argument(help="The concurrency key with --tenant, else the harness.")],
    limit: Annotated[int, typer.Argument(min=0, help="Runs in flight at once.")],
    tenant: Annotated[str | None, typer.Option(help="Whose concurrency key; without it: a harness.")] = None,
    reason: Annotated[str, typer.Option(help="For the audit log.")] = "",
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Set the limit of a concurrency key or a harness. Needs an operator's token."""
    calls = client(url, token_file)
    change = guarded(lambda: calls.set_limit(key, limit, tenant=tenant, reason=reason))
    if as_json:
        print_json(change)
    else:
        sys.stdout.write(change["sentence"] + "\n")
