"""`wharfinger runner pause|resume|verify|config check`: about this machine as a runner."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from runners.agent.executors.base import Executor, ExecutorError
from runners.agent.spool import Spool, SpoolError
from runners.cli.config import RunnerConfig, load_config, runner_config_path, spool_directory
from runners.cli.options import Url
from runners.cli.output import Exit, err, fail, guarded
from runners.transport import Transport

Reason = Annotated[str, typer.Option(help="For the audit log, and shown to operators.")]
ExecutorName = Annotated[str, typer.Option(help="As enrolled, unless given.")]
MakeExecutor = Callable[[str, dict[str, str]], Executor]

config_app = typer.Typer(help="This machine's configuration.", no_args_is_help=True)


def enrolled() -> RunnerConfig:
    """What this machine enrolled as; without it the command ends with 78 and says how to enrol."""
    stored = guarded(lambda: load_config(runner_config_path())).runner
    if not stored.token:
        fail(
            Exit.CONFIGURATION,
            f"this machine is not enrolled ({runner_config_path()} has no runner)",
            "Run: wharfinger runner enrol; or name the directory of its state in WHARFINGER_RUNNER_STATE.",
        )
    return stored


def pause(reason: Reason = "", url: Url = None) -> None:
    """Take no new runs until resumed; what runs goes on."""
    _wish("pause", reason, url, "paused: nothing new is taken; resume with: wharfinger runner resume")


def resume(reason: Reason = "", url: Url = None) -> None:
    """Take runs again after this machine's own pause or drain. An operator's is taken back by an operator."""
    _wish("resume", reason, url, "takes runs again")


def _wish(verb: str, reason: str, url: str | None, done: str) -> None:
    stored = enrolled()
    body = {"verb": verb, "reason": reason}
    transport = guarded(lambda: Transport(url or stored.url, stored.token))
    answer: dict[str, Any] = guarded(lambda: transport.json("POST", "/runner/wish", json=body))
    err.print(f"runner {stored.id} ({stored.name}): {done if answer['changed'] else 'it was so already'}")


@config_app.command("check")
def check_config() -> None:
    """Say whether the stored configuration can be used; asks nobody. Exit code 78 if it cannot."""
    stored = enrolled()
    found = [*_wrong_file(runner_config_path()), *_wrong_spool(stored)]
    guarded(lambda: Transport(stored.url, stored.token))
    if found:
        fail(Exit.CONFIGURATION, found[0], *found[1:])
    err.print(f"{runner_config_path()}: runner {stored.id} ({stored.name}) at {stored.url}")
    err.print(f"executor {stored.executor}, {stored.slots} slots, spool {spool_directory(stored)}")


def _wrong_file(path: Path) -> list[str]:
    found = path.stat()
    wrong = []
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        wrong.append(f"{path} can be read by others (mode {found.st_mode & 0o777:o}); run: chmod 600 {path}")
    if found.st_uid != os.geteuid():
        wrong.append(f"{path} belongs to another user than this one")
    return wrong


def _wrong_spool(stored: RunnerConfig) -> list[str]:
    try:
        Spool(spool_directory(stored))
    except SpoolError as error:
        return [str(error)]
    return []


def verifier(make_executor: MakeExecutor) -> Callable[..., None]:
    """`verify`, with the executors that this program has."""

    def verify(
        url: Url = None, executor: Annotated[str, typer.Option(help="As enrolled, unless given.")] = ""
    ) -> None:
        """Try everything that `run` needs, executing nothing: configuration, server, token, executor.

        Exit codes: 0 all is well; 69 the server does not answer; 77 the token is dead; 78 something here is wrong.
        """
        stored = enrolled()
        check_config()
        transport = guarded(lambda: Transport(url or stored.url, stored.token))
        answer = guarded(lambda: transport.json("GET", "/runner"))
        err.print(f"server: knows this machine as runner {answer['id']} ({answer['name']}), {answer['mode']}")
        name = executor or stored.executor or "docker"
        try:
            made = make_executor(name, {})
        except ExecutorError as error:
            fail(Exit.CONFIGURATION, f"executor {name}: {error}")
        err.print(f"executor: {made.name} works{f' at {made.endpoint}' if made.endpoint else ''}")

    return verify
