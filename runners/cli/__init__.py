"""The `wharfinger` command: submit runs, look at them, and make machines into runners. Plain Python, no Django."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from runners.cli import limits, runner, secret, token
from runners.cli.artifacts import artifacts
from runners.cli.config import load_config, read_secret
from runners.cli.logs import print_log, print_log_json
from runners.cli.options import AsJson, TokenFile, Url, client
from runners.cli.output import Exit, err, fail, guarded, print_json, print_table, run_exit_code
from runners.cli.submit import run_file, run_single
from runners.cli.why import show_why
from runners.client import Client
from runners.transport import ApiError

app = typer.Typer(
    help="Submit container runs to a Wharfinger control plane, and look at them.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
app.add_typer(runner.app, name="runner")
app.add_typer(secret.app, name="secret")

app.add_typer(token.app, name="token")

app.command()(artifacts)
app.command()(limits.limits)
app.command("set-limit")(limits.set_limit)


@app.command()
def login(url: Annotated[str, typer.Option(envvar="WHARFINGER_URL", help="Address of the control plane.")]) -> None:
    """Store address and token for later commands. The token is asked for, or read from standard input."""
    token = read_secret("WHARFINGER_TOKEN")
    if not token:
        token = typer.prompt("Token", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline().strip()

    def store() -> None:
        next(iter(Client(url, token).runs(most=1)), None)  # proves address and token before they are stored
        load_config().with_login(url, token).save()

    guarded(store)
    err.print(f"logged in; stored in {load_config().path}")


@app.command()
def submit(  # noqa: PLR0913, PLR0917 - options, each by its name
    command: Annotated[list[str] | None, typer.Argument(help="One run's command, after --.")] = None,
    file: Annotated[str | None, typer.Option(help="Runs as JSON lines; - is standard input.")] = None,
    batch: Annotated[str, typer.Option(help="Name of the batch; without it the file's name.")] = "",
    again: Annotated[bool, typer.Option("--again", help="Submit anew what was submitted before.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Until all ended. One run: ends as it did; a file: 1 unless all succeeded.")
    ] = False,
    image: Annotated[str, typer.Option(envvar="WHARFINGER_IMAGE", help="Image of the one run.")] = "",
    name: Annotated[str, typer.Option(help="Name of the one run.")] = "",
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Submit a file of runs, or one run.

    A wrong line is reported with its number and reason and does not hinder the others; the exit code is 2 then.
    Repeating the same file submits nothing twice.

    wharfinger submit --file runs.jsonl --batch evening --wait

    wharfinger submit --image python:3-slim -- python -c 'print(1)'
    """
    if bool(file) == bool(command):
        fail(Exit.WRONG_INPUT, "give either --file runs.jsonl, or one run's command after --")
    calls = client(url, token_file)
    if file:
        if file != "-" and not Path(file).is_file():
            fail(Exit.WRONG_INPUT, f"there is no file {file}")
        named = batch or ("stdin" if file == "-" else Path(file).stem)
        guarded(lambda: run_file(calls, file, named, again=again, wait=wait, as_json=as_json))
        return
    spec: dict[str, Any] = {"command": command or []}
    spec |= {key: value for key, value in (("image", image), ("name", name)) if value}
    guarded(lambda: run_single(calls, spec, wait=wait, as_json=as_json))


@app.command()
def runs(  # noqa: PLR0917 - options, each by its name
    state: Annotated[list[str] | None, typer.Option(help="Only these states; may be repeated.")] = None,
    batch: Annotated[str | None, typer.Option(help="Only this batch, by name.")] = None,
    name: Annotated[str | None, typer.Option(help="Only this name.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, newest first.")] = 50,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first."""
    calls = client(url, token_file)
    found = guarded(lambda: list(calls.runs(most=limit, state=state or None, batch_name=batch, name=name)))
    if as_json:
        print_json(found)
        return
    columns = ("id", "name", "state", "reason", "attempt", "exit_code", "driver_name", "created_at")
    print_table(columns, ([run[column] for column in columns] for run in found))


@app.command()
def logs(  # noqa: PLR0917 - options, each by its name
    run: Annotated[int, typer.Argument(help="The run's id.")],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the run has ended.")] = False,
    attempt: Annotated[int | None, typer.Option(min=1, help="Which attempt; without it the latest.")] = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Print a run's output. Where bytes of it are missing is said on standard error."""
    calls = client(url, token_file)
    show = print_log_json if as_json else print_log
    guarded(lambda: show(calls.follow_log(run, follow=follow, attempt=attempt)))


@app.command()
def wait(
    run: Annotated[int, typer.Argument(help="The run's id.")],
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Wait until a run has ended, and end as it did."""
    calls = client(url, token_file)
    found = guarded(lambda: calls.wait(run))
    if as_json:
        print_json(found)
    else:
        err.print(f"run {run}: {found['state']} {found['reason']}".rstrip())
    raise typer.Exit(run_exit_code(found))


@app.command()
def cancel(
    run: Annotated[list[int], typer.Argument(help="Ids of runs.")],
    reason: Annotated[str, typer.Option(help="For the run's history.")] = "",
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Cancel runs. A queued one ends at once, one that runs when its driver has stopped it."""
    calls = client(url, token_file)
    answers = [guarded(lambda one=one: _cancel(calls, one, reason)) for one in run]  # type: ignore[misc]
    if as_json:
        print_json(answers)
    for answer in answers if not as_json else ():
        asked = "cancelled" if answer["state"] == "cancelled" else "cancel requested"
        err.print(f"run {answer['run']}: {answer['error'] or asked}")
    if any(answer["error"] for answer in answers):
        raise typer.Exit(Exit.FAILED)


def _cancel(calls: Client, run: int, reason: str) -> dict[str, Any]:
    try:
        return {"run": run, "state": calls.cancel(run, reason)["state"], "error": ""}
    except ApiError as error:
        if error.status in (401, 403):
            raise
        return {"run": run, "state": None, "error": str(error)}


@app.command()
def why(
    run: Annotated[int, typer.Argument(help="The run's id.")],
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Say why a run is waiting: the limits that block it, who holds them, and its place in line."""
    calls = client(url, token_file)
    found = guarded(lambda: calls.why(run))
    if as_json:
        print_json(found)
    else:
        show_why(found)


@app.command()
def version() -> None:
    """Print the version."""
    sys.stdout.write(runner.package_version() + "\n")


def main() -> None:
    """The console script."""
    try:
        app()
    except BrokenPipeError:
        # Whoever read our output has enough.
        sys.exit(Exit.DONE)
