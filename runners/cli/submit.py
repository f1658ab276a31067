"""`wharfinger submit`: a file of runs, or one run."""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import typer
from pydantic import ValidationError
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from admission.spec import parse_spec
from runners.cli.jsonl import Line, Lines, describe, portions, ranges, read_lines
from runners.cli.output import Exit, WrongInput, err, print_json, run_exit_code
from runners.client import TERMINAL, Client
from runners.transport import ApiError, Unreachable


@dataclass(slots=True)
class Report:
    """What became of a file: run ids by line number."""

    batch: str
    batch_id: int | None = None
    submitted: dict[int, int] = field(default_factory=dict)
    existed: dict[int, int] = field(default_factory=dict)
    wrong: dict[int, str] = field(default_factory=dict)
    warned: dict[str, list[int]] = field(default_factory=dict)
    """What the server said of runs that it took, and of which lines."""
    unsent: list[int] = field(default_factory=list)
    failure: str = ""
    counts: dict[str, int] | None = None

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        lines = {
            "submitted": [{"line": number, "run": run} for number, run in self.submitted.items()],
            "existed": [{"line": number, "run": run} for number, run in self.existed.items()],
            "wrong": [{"line": number, "error": error} for number, error in sorted(self.wrong.items())],
            "unsent": self.unsent,
            "warnings": [{"warning": text, "lines": numbers} for text, numbers in self.warned.items()],
        }
        return {"batch": self.batch, "id": self.batch_id, **lines, "failure": self.failure, "counts": self.counts}


def _show_nothing(done: int, text: str) -> None:
    """Without a terminal."""


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int, str], None]]:
    """A bar on a terminal, nothing elsewhere. Yields `show(done, text)`."""
    if not sys.stderr.isatty():
        yield _show_nothing
        return
    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[say]}"),
    )
    with Progress(*columns, console=err) as bar:
        task = bar.add_task(what, total=total, say="")
        yield lambda done, text: bar.update(task, completed=done, say=text)


def open_file(path: str) -> contextlib.AbstractContextManager[BinaryIO]:
    """The file, or standard input for `-`."""
    if path == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    return Path(path).open("rb")


def submit_file(client: Client, path: str, batch: str, *, again: bool) -> Report:
    """Judge every line, then send what is right in portions."""
    salt = secrets.token_hex(8) if again else ""
    try:
        with open_file(path) as file:
            lines = read_lines(file, batch, salt)
    except OSError as error:
        raise WrongInput(f"{path} cannot be read: {error.strerror}") from error
    report = Report(batch, wrong=dict(lines.wrong))
    _send(client, lines, report)
    return report


def _send(client: Client, lines: Lines, report: Report) -> None:
    done = 0
    with progress("submitting", len(lines.right)) as show:
        for portion in portions(lines.right):
            if report.failure:
                report.unsent += [line.number for line in portion]
                continue
            try:
                answer = client.submit_batch(report.batch, [line.item() for line in portion])
            except (Unreachable, ApiError) as error:
                report.failure = str(error)
                report.unsent += [line.number for line in portion]
                continue
            _note(report, portion, answer)
            done += len(portion)
            show(done, "")


def _note(report: Report, portion: list[Line], answer: Mapping[str, Any]) -> None:
    report.batch_id = answer["id"] or report.batch_id
    for line, item in zip(portion, answer["items"], strict=True):
        for warning in item["warnings"]:
            report.warned.setdefault(warning, []).append(line.number)
        if item["outcome"] == "created":
            report.submitted[line.number] = item["id"]
        elif item["outcome"] == "existed":
            report.existed[line.number] = item["id"]
        else:
            found = "; ".join(f"{e['field']}: {e['error']}" for e in item["errors"])
            report.wrong[line.number] = found or "its idempotency key was used for another run"


def say_report(report: Report) -> None:
    """For people, on standard error; the ids are on standard output."""
    for number, reason in sorted(report.wrong.items()):
        err.print(f"line {number}: {reason}")
    if report.submitted:
        err.print(
            f"submitted {len(report.submitted)} runs to batch {report.batch!r}: lines {ranges(report.submitted)}"
        )
    if report.existed:
        err.print(
            f"{len(report.existed)} runs were there already, nothing was submitted twice: lines "
            f"{ranges(report.existed)}. To run them again, give --again."
        )
    if report.wrong:
        err.print(f"{len(report.wrong)} lines are wrong and were not submitted: lines {ranges(report.wrong)}")
    for warning, numbers in report.warned.items():
        err.print(f"warning, lines {ranges(numbers)}: {warning}")
    if report.failure:
        err.print(f"error: {report.failure}")
        err.print(
            f"not known to be submitted: lines {ranges(report.unsent)}. Repeat the same command: "
            "what was submitted is recognised."
        )
    if not (report.submitted or report.existed or report.wrong or report.failure):
        err.print("the file holds no runs")


def wait_for_batch(client: Client, report: Report) -> None:
    """Until every run of the batch ended."""
    if report.batch_id is None:
        return
    total = sum(client.batch(report.batch_id)["counts"].values())
    with progress("running", total) as show:

        def tell(counts: Mapping[str, int]) -> None:
            ended = sum(count for state, count in counts.items() if state in TERMINAL)
            show(ended, ", ".join(f"{count} {state}" for state, count in sorted(counts.items())))

        report.counts = client.wait_batch(report.batch_id, tell)


def file_exit_code(report: Report) -> Exit:
    """Wrong input counts before failed runs: it can be corrected here."""
    if report.failure:
        return Exit.FAILED
    if report.wrong:
        return Exit.WRONG_INPUT
    if report.counts is not None and set(report.counts) - {"succeeded"}:
        return Exit.FAILED
    return Exit.DONE


def run_file(client: Client, path: str, batch: str, *, again: bool, wait: bool, as_json: bool) -> None:
    """The whole of `submit --file`."""
    report = submit_file(client, path, batch, again=again)
    if not as_json:
        say_report(report)
    if wait and not report.failure:
        wait_for_batch(client, report)
        if not as_json and report.counts is not None:
            err.print("ended: " + ", ".join(f"{n} {state}" for state, n in sorted(report.counts.items())))
    if as_json:
        print_json(report.as_dict())
    raise typer.Exit(file_exit_code(report))


def run_single(client: Client, spec: dict[str, Any], *, wait: bool, as_json: bool) -> None:
    """The whole of `submit -- command…`."""
    try:
        parse_spec(spec)
    except ValidationError as error:
        raise WrongInput(f"the run is wrong: {describe(error)}") from error
    # The key makes the call repeatable through an outage; a second command is a second run.
    answer: dict[str, Any] = client.submit(spec, key=secrets.token_hex(16))
    for warning in answer["warnings"]:
        err.print(f"warning: {warning}")
    if wait:
        answer = client.wait(answer["id"])
    if as_json:
        print_json(answer)
    else:
        sys.stdout.write(f"{answer['id']}\n")
        if wait:
            err.print(f"run {answer['id']}: {answer['state']} {answer['reason']}".rstrip())
    raise typer.Exit(run_exit_code(answer) if wait else Exit.DONE)
