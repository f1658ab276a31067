"""docs/cli.md, written from the commands themselves: `python -m runners.cli.page` prints it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import typer

from runners.agent.agent import ExitCode
from runners.cli import app
from runners.cli.output import MEANINGS

HEAD = """# The `wharfinger` command

Plain Python, without Django: `pip install wharfinger`, then `wharfinger login --url https://…`. Written by
`python -m runners.cli.page`; a test compares.

Address and token come from the option, else from the environment, else from what `wharfinger login` stored
(`$WHARFINGER_CONFIG`, else `wharfinger/config.toml` below `$XDG_CONFIG_HOME` or `~/.config`; readable by its owner
only). A token is never an argument: it is read from a file, from `WHARFINGER_TOKEN`, or from the file that
`WHARFINGER_TOKEN_FILE` names. With `--json`, standard output holds JSON and nothing else; what is for people is on
standard error. `wharfinger --install-completion` sets up the shell.
"""
RUNNER_CODES = {
    ExitCode.DONE: "Stopped as asked; nothing is left.",
    ExitCode.UNCONFIRMED: "Something was not confirmed gone or reported in time. Starting again cleans up.",
    ExitCode.CREDENTIAL: "The token is dead. Enrol again; starting again is of no use.",
    ExitCode.CONFIGURATION: "The executor cannot work here, or the server refuses this version. "
    "A Docker daemon that does not answer is waited for.",
}
CODES = """## Exit codes

A command that waited for one run (`submit --wait`, `wait`) ends as that run did: with its own exit code where it
failed by itself, else as below. Codes up to 125 may thus be the run's.

"""
HIDDEN = {"--help", "--install-completion", "--show-completion"}


def cli_page() -> str:
    """The whole page."""
    group: Any = typer.main.get_command(app)
    parts = [HEAD, *_commands(group, "wharfinger"), CODES + _codes(MEANINGS)]
    parts.append("### Of `wharfinger runner run`\n\n" + _codes(RUNNER_CODES))
    return "\n".join(parts)


def _codes(meanings: Any) -> str:
    rows = "".join(f"| {int(code)} | {text} |\n" for code, text in meanings.items())
    return f"| code | meaning |\n| --- | --- |\n{rows}"


def _commands(group: Any, path: str) -> Iterator[str]:
    for name, command in sorted(group.commands.items()):
        words = f"{path} {name}"
        if hasattr(command, "commands"):
            yield from _commands(command, words)
        else:
            yield _command(command, words)


def _command(command: Any, words: str) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not HIDDEN & set(p.opts)]
    usage = " ".join([words, *(_usage(p) for p in arguments)])
    help_text = "\n\n".join(" ".join(block.split()) for block in (command.help or "").split("\n\n"))
    rows = "".join(_row(p) for p in [*arguments, *options])
    table = f"\n| | environment | |\n| --- | --- | --- |\n{rows}" if rows else ""
    return f"## `{usage}`\n\n{help_text}\n{table}"


def _usage(parameter: Any) -> str:
    name = str(parameter.name).upper() + ("…" if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def _row(parameter: Any) -> str:
    names = ", ".join(parameter.opts) if parameter.param_type_name == "option" else str(parameter.name).upper()
    variable = parameter.envvar or ""
    default = parameter.default
    shown = f" Default: {default}." if isinstance(default, (int, float, str)) and default not in ("", False, 0) else ""
    return (
        f"| `{names}` | {f'`{variable}`' if variable else ''} | {' '.join((parameter.help or '').split())}{shown} |\n"
    )


if __name__ == "__main__":
    sys.stdout.write(cli_page())
