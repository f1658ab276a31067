"""`wharfinger runner …`: make this machine a runner, and run it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer

from runners.agent.agent import Agent, AgentSettings, machine_label
from runners.agent.executors.base import Executor, ExecutorError
from runners.cli import machine
from runners.cli.config import (
    ConfigError,
    RunnerConfig,
    load_config,
    read_secret,
    runner_config_path,
    spool_directory,
)
from runners.cli.output import Exit, WrongInput, err, fail, guarded, print_json
from runners.cli.telling import Telling
from runners.transport import Transport, Unreachable

app = typer.Typer(help="Make this machine a runner, and run it.", no_args_is_help=True)

ENROL_SECONDS = 30.0

Url = Annotated[str | None, typer.Option(envvar="WHARFINGER_URL", help="Address of the control plane.")]
Name = Annotated[str, typer.Option(envvar="WHARFINGER_RUNNER_NAME", help="How the fleet shows this machine.")]
Slots = Annotated[int, typer.Option(envvar="WHARFINGER_RUNNER_SLOTS", min=1, max=1000, help="Runs at once.")]
ExecutorName = Annotated[
    str, typer.Option(envvar="WHARFINGER_EXECUTOR", help="docker; or process, for trusted code only.")
]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", envvar="WHARFINGER_RUNNER_LABELS", help="name=value; may be repeated."),
]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", help="File with the enrolment token; else WHARFINGER_ENROLMENT_TOKEN(_FILE)."),
]


def package_version() -> str:
    """Of this program."""
    try:
        return version("wharfinger")
    except PackageNotFoundError:
        return "from source"


@app.command()
def enrol(  # noqa: PLR0917 - options, each by its name
    url: Url = None,
    name: Name = "",
    slots: Slots = 1,
    executor: ExecutorName = "docker",
    label: Labels = None,
    one_job: Annotated[
        bool, typer.Option("--one-job", envvar="WHARFINGER_RUNNER_ONE_JOB", help="Take one run, then end.")
    ] = False,
    token_file: TokenFile = None,
) -> None:
    """Trade an enrolment token for this machine's own token, and store that."""
    secret = guarded(lambda: read_secret("WHARFINGER_ENROLMENT_TOKEN", token_file))
    stored = guarded(lambda: enrol_machine(url, secret, name, slots, executor, labels=label or [], one_job=one_job))
    err.print(f"enrolled as runner {stored.id} ({stored.name}); next: wharfinger runner run")


def enrol_machine(
    url: str | None, secret: str, name: str, slots: int, executor: str, *, labels: list[str], one_job: bool = False
) -> RunnerConfig:
    """Enrol and store. Repeated only while certainly nothing was sent: each use of the token counts."""
    config = load_config(runner_config_path())
    address = url or config.url
    if not address:
        raise ConfigError("No server is named. Set WHARFINGER_URL or give --url.")
    if not secret:
        raise ConfigError("No enrolment token. An operator issues one; put it into WHARFINGER_ENROLMENT_TOKEN.")
    # Before a use of the enrolment token is spent: what could not be stored would be lost with it.
    config.save()
    host = platform.node()
    body = {
        "token": secret,
        "name": name or host or "runner",
        "slots": slots,
        "executors": [executor],
        "labels": _labels(labels),
        "version": package_version()[:40],
        "host": host[:200],
        "one_job": one_job,
    }
    answer = _while_nobody_listens(lambda: Transport(address).json("POST", "/runners/enrol", json=body))
    # What an earlier enrolment made on this machine is this runner's to clear up.
    identity = config.runner.identity or machine_label(config.runner.token or answer["token"])
    runner = RunnerConfig(address, answer["token"], answer["id"], answer["name"], executor, slots, identity)
    config.with_runner(runner).save()
    return runner


def _labels(given: list[str]) -> dict[str, str]:
    labels = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator:
            raise WrongInput(f"--label {text!r} is not of the form name=value")
        labels[name] = value
    return labels


def _while_nobody_listens(send: Callable[[], Any]) -> Any:
    until = time.monotonic() + ENROL_SECONDS
    while True:
        try:
            return send()
        except Unreachable as error:
            if error.sent or time.monotonic() > until:
                raise
        time.sleep(0.5)


@app.command()
def run(  # noqa: PLR0913, PLR0917 - options, each by its name
    url: Url = None,
    name: Name = "",
    slots: Annotated[int, typer.Option(envvar="WHARFINGER_RUNNER_SLOTS", min=0, max=1000, help="Runs at once.")] = 0,
    executor: Annotated[str, typer.Option(envvar="WHARFINGER_EXECUTOR", help="As enrolled, unless given.")] = "",
    memory_mib: Annotated[
        int, typer.Option(envvar="WHARFINGER_RUNNER_MEMORY_MIB", min=0, help="Memory for runs; 0: not bounded here.")
    ] = 0,
    cpu: Annotated[
        float, typer.Option(envvar="WHARFINGER_RUNNER_CPU", min=0, help="Processors for runs; 0: not bounded here.")
    ] = 0,
    image_aliases: Annotated[
        str, typer.Option(envvar="WHARFINGER_IMAGE_ALIASES", help="name=other,…: where an image is not to be had.")
    ] = "",
    drain_seconds: Annotated[
        float,
        typer.Option(envvar="WHARFINGER_DRAIN_SECONDS", min=0, help="Patience of a stop with what runs; 0: no end."),
    ] = 0,
    once: Annotated[bool, typer.Option("--once", help="Take one run, and end with it.")] = False,
    idle_exit: Annotated[
        float, typer.Option(envvar="WHARFINGER_IDLE_EXIT", min=0, help="End after so many seconds without a run.")
    ] = 0,
    label: Labels = None,
) -> None:
    """Execute runs until stopped. SIGTERM or Ctrl-C drains, a second one stops what runs.

    A server or a Docker daemon that does not answer is waited for, at the start too.

    Results and output that cannot be delivered wait on the disk (WHARFINGER_SPOOL) and are delivered first at the next
    start.

    Exit codes: 0 stopped as asked (also --once, whatever the run's end, and --idle-exit); 75 something was not
    confirmed gone or delivered in time, starting again goes on with it; 77 the token is dead, enrol anew; 78 something
    here is wrong and starting again is of no use: the executor, the configuration or the spool.
    """
    stored = guarded(lambda: load_config(runner_config_path())).runner
    if not stored.token:
        stored = guarded(lambda: _enrol_first(url, name, slots or 1, executor or "docker", label or []))
    chosen = executor or stored.executor or "docker"
    aliases = guarded(lambda: _aliases(image_aliases))
    settings = AgentSettings(
        slots or stored.slots or 1,
        memory_mib or None,
        cpu or None,
        drain_seconds or None,
        once,
        idle_exit or None,
        spool_directory(stored),
    )
    telling = Telling()
    agent = guarded(
        lambda: Agent(
            url or stored.url,
            stored.token,
            lambda: make_executor(chosen, aliases),
            settings,
            telling,
            identity=stored.identity,
            stored_token=lambda: load_config(runner_config_path()).runner.token,
        )
    )
    raise typer.Exit(int(agent.run()))


def _enrol_first(url: str | None, name: str, slots: int, executor: str, labels: list[str]) -> RunnerConfig:
    secret = read_secret("WHARFINGER_ENROLMENT_TOKEN")
    if not secret:
        raise ConfigError(
            f"This machine is not enrolled ({runner_config_path()} has no runner). Run: wharfinger runner enrol"
        )
    return enrol_machine(url, secret, name, slots, executor, labels=labels)


def _aliases(text: str) -> dict[str, str]:
    aliases = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, separator, other = part.partition("=")
        if not separator or not name or not other:
            raise WrongInput(f"image alias {part!r} is not of the form name=other")
        aliases[name] = other
    return aliases


def make_executor(name: str, aliases: dict[str, str]) -> Executor:
    """Raises ExecutorError where it cannot work here. Imported late: the process executor needs no Docker client."""
    if name == "docker":
        from runners.agent.executors.docker import DockerExecutor  # noqa: PLC0415
        from runners.agent.executors.docker_adapter import DockerAdapter  # noqa: PLC0415
        from runners.agent.physical.building import make_keeper  # noqa: PLC0415

        adapter = DockerAdapter()
        return DockerExecutor(adapter, aliases, make_keeper(os.environ, adapter))
    if name != "process":
        raise ExecutorError(f"there is no executor {name!r}; choose docker or process")
    from runners.agent.executors.process import ProcessExecutor  # noqa: PLC0415
    from runners.agent.physical.uncounted import refuse_uncounted  # noqa: PLC0415

    refuse_uncounted(os.environ)
    return ProcessExecutor()


app.command()(machine.pause)
app.command()(machine.resume)
app.command()(machine.verifier(make_executor))
app.add_typer(machine.config_app, name="config")


@app.command()
def rotate(
    overlap_hours: Annotated[
        float, typer.Option(min=0, max=168, help="How long the old token opens at most, unless the new one is used.")
    ] = 24,
    url: Url = None,
) -> None:
    """Replace this machine's token. An agent that runs here takes up the new one by itself."""
    config = guarded(lambda: load_config(runner_config_path()))
    stored = machine.enrolled()
    transport = guarded(lambda: Transport(url or stored.url, stored.token))
    body = {"overlap_seconds": overlap_hours * 3600}
    answer = guarded(lambda: transport.json("POST", "/runner/token", json=body))
    renewed = replace(stored, token=answer["token"], identity=stored.identity or machine_label(stored.token))
    guarded(config.with_runner(renewed).save)
    err.print(f"runner {stored.id} has a new token; the old one opens until {answer['old_until']} at most")


@app.command()
def drain(
    reason: Annotated[str, typer.Option(help="For the audit log.")] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Take it back, before the agent is started again.")] = False,
    url: Url = None,
) -> None:
    """Ask the server for no more work: the agent finishes what it has and ends."""
    stored = machine.enrolled()
    transport = guarded(lambda: Transport(url or stored.url, stored.token))
    if undo:
        answer = guarded(lambda: transport.json("DELETE", "/runner/drain"))
    else:
        answer = guarded(lambda: transport.json("POST", "/runner/drain", json={"reason": reason}))
    err.print(f"runner {stored.id}: {answer['mode']}{'' if answer['changed'] else ', as before'}")
    if undo and answer["mode"] == "draining":
        fail(Exit.FAILED, "it drains because an operator wants it to; ask one to resume it")


@app.command()
def status(
    url: Url = None, as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False
) -> None:
    """Ask the server what it knows of this runner."""
    stored = machine.enrolled()
    transport = guarded(lambda: Transport(url or stored.url, stored.token))
    answer = guarded(lambda: {**transport.json("GET", "/runner"), "holds": _held(transport)})
    if as_json:
        print_json(answer)
        return
    err.print(f"runner {answer['id']} ({answer['name']}): {answer['mode']}, {answer['slots']} slots")
    for hold in answer["holds"]:
        err.print(f"  run {hold['run']} of {hold['tenant']}: {hold['state']}, attempt {hold['attempt']}")


def _held(transport: Transport) -> list[dict[str, Any]]:
    listed = transport.json("GET", "/runner/holds")["assignments"]
    return [{name: item[name] for name in ("run", "epoch", "attempt", "tenant", "state")} for item in listed]
