"""The `wharfinger` command against a server on a socket."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from admission.models import Run
from admission.services.runs import Settlement, cancel_runs, settle_runs
from admission.services.serving import drivers_lately
from admission.services.tenants import issue_token
from controlplane.core.audit import SYSTEM
from runners.cli import app
from runners.cli.config import load_config
from runners.cli.jsonl import line_key, ranges, read_lines
from runners.models import Secret
from runners.services.enrolment import issue_enrolment_token
from runners.services.fleet import drain_runner
from runners.services.logs import append_log, note_log_ends
from runners.services.sealing import unseal
from tests import ledger

Command = Callable[..., Any]

GOOD = '{"command": ["true"], "name": "good"}'
LINES = [
    GOOD,
    '{"comand": ["true"]}',
    "",
    "not json",
    '{"command": ["true"], "weight": 0}',
    "[1]",
    '{"command": ["echo", "ü"]}',
]


@pytest.fixture
def tenant_row(transactional_db: None) -> Any:
    return ledger.make_tenant()


@pytest.fixture
def command(live_server: Any, tenant_row: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """`command("runs", "--json")`: run the command line as this tenant."""
    monkeypatch.setenv("WHARFINGER_URL", live_server.url)
    monkeypatch.setenv("WHARFINGER_TOKEN", issue_token(tenant_row, "cli", actor=SYSTEM)[1])
    monkeypatch.setenv("WHARFINGER_CONFIG", str(tmp_path / "config" / "config.toml"))
    monkeypatch.delenv("WHARFINGER_RUNNER_STATE", raising=False)

    def run(*words: str, **options: Any) -> Any:
        return CliRunner().invoke(app, list(words), **options)

    return run


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "runs.jsonl"
    path.write_text("\n".join(LINES) + "\n")
    return str(path)


@pytest.mark.rule("X5")
def test_wrong_lines_are_reported_and_do_not_hinder_the_others(command: Command, file: str) -> None:
    done = command("submit", "--file", file)
    assert done.exit_code == 2
    assert "line 2: command: Field required; comand: Extra inputs are not permitted" in done.stderr
    assert "line 4: is not JSON" in done.stderr
    assert "line 5: weight" in done.stderr
    assert "line 6: is not a JSON object" in done.stderr
    assert "submitted 2 runs to batch 'runs': lines 1, 7" in done.stderr
    assert "4 lines are wrong and were not submitted: lines 2, 4-6" in done.stderr
    assert Run.objects.count() == 2


@pytest.mark.rule("A27")
def test_a_repeat_of_the_same_file_submits_nothing_twice_and_says_so(command: Command, file: str) -> None:
    command("submit", "--file", file)
    again = command("submit", "--file", file)
    assert again.exit_code == 2
    assert "2 runs were there already, nothing was submitted twice: lines 1, 7" in again.stderr
    assert Run.objects.count() == 2
    anew = command("submit", "--file", file, "--again")
    assert "submitted 2 runs" in anew.stderr
    command("submit", "--file", file, "--batch", "other")
    assert Run.objects.count() == 6


def test_the_answer_as_json(command: Command, file: str) -> None:
    done = command("submit", "--file", file, "--json")
    report = json.loads(done.stdout)
    assert [entry["line"] for entry in report["submitted"]] == [1, 7]
    assert [entry["line"] for entry in report["wrong"]] == [2, 4, 5, 6]
    assert {entry["run"] for entry in report["submitted"]} == set(Run.objects.values_list("pk", flat=True))
    assert report["failure"] == ""


def test_a_file_of_right_lines_ends_well(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text("".join(f'{{"command": ["echo", "{n}"]}}\n' for n in range(1200)))
    done = command("submit", "--file", str(path))
    assert (done.exit_code, Run.objects.count()) == (0, 1200)
    assert "lines 1-1200" in done.stderr


def test_standard_input_and_an_empty_file(command: Command) -> None:
    assert command("submit", "--file", "-", input=GOOD + "\n").exit_code == 0
    assert "holds no runs" in command("submit", "--file", "-", input="\n\n").stderr


def test_waiting_ends_with_the_runs(command: Command, file: str, make_driver: Any) -> None:
    ledger.submit(Run.objects.model.tenant.field.related_model.objects.get())  # not of the batch
    command("submit", "--file", file)
    driver = make_driver()
    ledger.succeed(driver, ledger.start(driver, ledger.admit_all(driver)))
    done = command("submit", "--file", file, "--wait")
    assert "ended: 2 succeeded" in done.stderr
    assert done.exit_code == 2  # the wrong lines


def test_one_run(command: Command) -> None:
    done = command("submit", "--image", "debian:stable", "--name", "one", "--", "echo", "--flag", "hi")
    run = Run.objects.get()
    assert (done.exit_code, done.stdout) == (0, f"{run.pk}\n")
    assert run.spec == {"name": "one", "image": "debian:stable", "command": ["echo", "--flag", "hi"]}


def test_runs_are_listed(command: Command, file: str) -> None:
    command("submit", "--file", file, "--batch", "b")
    command("submit", "--", "true")
    listed = json.loads(command("runs", "--batch", "b", "--json").stdout)
    assert [run["name"] for run in listed] == ["", "good"]
    lines = command("runs", "--state", "queued", "--limit", "2").stdout.splitlines()
    assert len(lines) == 2
    assert lines[0].split("\t")[2] == "queued"


@pytest.mark.rule("X5")
def test_logs_follow_a_run_over_its_attempts(command: Command, tenant_row: Any, make_driver: Any) -> None:
    run = ledger.submit(tenant_row)[0]
    driver = make_driver()
    held = ledger.start(driver, ledger.admit_all(driver))
    append_log(driver, *held[0], 0, b"one\ntwo\n")
    assert command("logs", str(run)).stdout == "one\ntwo\n"
    ledger.succeed(driver, held)
    followed = command("logs", "-f", str(run))
    assert (followed.exit_code, followed.stdout) == (0, "one\ntwo\n")


@pytest.mark.rule("X5")
def test_cancel(command: Command, tenant_row: Any) -> None:
    run = ledger.submit(tenant_row)[0]
    done = command("cancel", str(run), "999999", "--reason", "enough")
    assert done.exit_code == 1
    assert f"run {run}: cancelled" in done.stderr
    assert "run 999999: There is no run 999999." in done.stderr
    assert ledger.run(run).cancel_reason == "enough"


def test_login_proves_and_stores_the_token_for_its_owner_only(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    token = os.environ["WHARFINGER_TOKEN"]
    monkeypatch.delenv("WHARFINGER_TOKEN")
    refused = command("login", input="wht_wrong\n")
    assert refused.exit_code == 77
    path = tmp_path / "config" / "config.toml"
    assert not path.exists()
    assert command("login", input=f"{token}\n").exit_code == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    monkeypatch.delenv("WHARFINGER_URL")
    assert command("runs").exit_code == 0
    assert token not in command("runs").output


def test_failures_say_what_to_do(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert command("submit").exit_code == 2
    assert "there is no file" in command("submit", "--file", str(tmp_path / "none")).stderr
    assert "image: must be" in command("submit", "--image", " ", "--", "true").stderr
    nowhere = command("runs", "--url", "nonsense")
    assert nowhere.exit_code == 78
    assert "no address" in nowhere.stderr
    token = tmp_path / "token"
    token.write_text("wht_other\n")
    assert command("runs", "--token-file", str(token)).exit_code == 77
    assert command("runs", "--token-file", str(tmp_path / "none")).exit_code == 78
    monkeypatch.delenv("WHARFINGER_TOKEN")
    assert "wharfinger login" in command("runs").stderr
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.toml").write_text("= wrong")
    assert "cannot be read" in command("runs").stderr


@pytest.mark.parametrize("text", ['runner = "x"', '[runner]\nslots = "x"', "url = 5", "token = [1]", "runner = [1]"])
def test_a_configuration_with_something_else_in_a_field_is_refused_by_its_name(
    command: Command, tmp_path: Path, text: str
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.toml").write_text(text)
    done = command("runs")
    assert done.exit_code == 78, done.exception
    assert "must be a" in done.stderr


@pytest.mark.parametrize("content", [b"\xff\xfe", b"wht_a\nwht_b\n", "wht_ü".encode(), "wht_€".encode()])
def test_what_cannot_be_a_token_is_refused_and_not_repeated(command: Command, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    done = command("runs", "--token-file", str(tmp_path / "token"))
    assert done.exit_code == 78, done.exception
    assert "no token" in done.stderr
    assert "wht" not in done.stderr


@pytest.mark.parametrize("url", ["http://[::1", "http://host:99999", "http://host:x", "http://host:0"])
def test_what_cannot_be_an_address_is_refused(command: Command, url: str) -> None:
    done = command("runs", "--url", url)
    assert done.exit_code == 78, done.exception
    assert "no address" in done.stderr


def test_a_server_that_is_away(command: Command, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    monkeypatch.setattr("runners.client.PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr("runners.client.Client.__init__.__kwdefaults__", {"patience": 0.1}, raising=False)
    monkeypatch.setenv("WHARFINGER_URL", "http://127.0.0.1:9")
    assert command("runs").exit_code == 69
    done = command("submit", "--file", file)
    assert done.exit_code == 1
    assert "not known to be submitted: lines 1, 7" in done.stderr


def ended(tenant_row: Any, driver: Any, ending: str, code: int | None = None) -> int:
    """A run that ended like this."""
    run = ledger.submit(tenant_row)[0]
    held = ledger.start(driver, ledger.admit_all(driver))
    if ending == "cancelled":
        cancel_runs([run], actor=SYSTEM)
    settle_runs(driver, [Settlement(*held[0], ending, exit_code=code)])
    return run


@pytest.mark.rule("X5")
@pytest.mark.parametrize(
    "end",
    [
        ("succeeded", 0, 0),
        ("failed", 3, 3),
        ("failed", 137, 137),
        ("failed", None, 1),
        ("failed", 4000, 1),
        ("timed_out", 137, 124),
        ("cancelled", None, 130),
    ],
)
def test_waiting_for_a_run_ends_as_it_did(
    command: Command, tenant_row: Any, make_driver: Any, end: tuple[str, int | None, int]
) -> None:
    ending, code, exit_code = end
    run = ended(tenant_row, make_driver(), ending, code)
    done = command("wait", str(run), "--json")
    assert (done.exit_code, json.loads(done.stdout)["state"]) == (exit_code, ending)


@pytest.mark.rule("X5", "O2")
def test_tokens_are_issued_used_and_revoked(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    issued = command("token", "issue", "nightly", "--days", "1")
    secret = issued.stdout.strip()
    assert secret.startswith("wht_")
    assert secret not in issued.stderr
    listed = json.loads(command("token", "list", "--json").stdout)
    assert [(t["name"], t["status"]) for t in listed] == [("nightly", "valid"), ("cli", "valid")]
    assert secret not in command("token", "list").output
    assert command("token", "revoke", str(listed[0]["id"])).exit_code == 0
    assert command("token", "revoke", "999999").exit_code == 1
    monkeypatch.setenv("WHARFINGER_TOKEN", secret)
    assert command("runs").exit_code == 77


@pytest.mark.rule("X5", "Q8")
def test_missing_output_is_said_beside_it_and_not_in_it(command: Command, tenant_row: Any, make_driver: Any) -> None:
    driver = make_driver()
    run = ledger.submit(tenant_row)[0]
    held = ledger.start(driver, ledger.admit_all(driver))
    append_log(driver, *held[0], 0, b"one\n")
    ledger.succeed(driver, held)
    note_log_ends(driver, [(*held[0], 10)])
    shown = command("logs", "-f", str(run))
    assert shown.stdout == "one\n"
    assert "6 bytes of output after byte 4 were not delivered; they may yet come" in shown.stderr
    part = json.loads(command("logs", str(run), "--json").stdout)
    assert (part["text"], part["missing"], part["finished"]) == ("one\n", 6, False)


@pytest.mark.rule("X5", "Q10")
def test_that_nobody_could_take_it_is_said_at_submit(command: Command, file: str) -> None:
    drivers_lately.forget()
    done = command("submit", "--", "true")
    assert done.exit_code == 0
    assert "warning: Nothing is enrolled that could take it" in done.stderr
    assert "warning, lines 1, 7: Nothing is enrolled" in command("submit", "--file", file).stderr
    again = json.loads(command("submit", "--file", file, "--again", "--json").stdout)
    assert again["warnings"][0]["lines"] == [1, 7]


@pytest.mark.rule("X5")
def test_cancel_and_why_as_json(command: Command, tenant_row: Any) -> None:
    run = ledger.submit(tenant_row)[0]
    assert json.loads(command("why", str(run), "--json").stdout)["run"] == run
    done = command("cancel", str(run), "999999", "--json")
    answers = json.loads(done.stdout)
    assert done.exit_code == 1
    assert [(a["run"], a["state"], bool(a["error"])) for a in answers] == [
        (run, "cancelled", False),
        (999999, None, True),
    ]


@pytest.mark.rule("X5", "Q2", "Q11")
def test_a_machine_enrols_rotates_drains_and_takes_it_back(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WHARFINGER_RUNNER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("WHARFINGER_ENROLMENT_TOKEN", issue_enrolment_token(actor=SYSTEM)[1])
    assert command("runner", "rotate").exit_code == 78
    assert command("runner", "enrol", "--name", "m", "--label", "gpu=a100").exit_code == 0
    first = load_config(tmp_path / "state" / "config.toml").runner
    wrong = command("runner", "run", "--url", "http://[::1")
    assert (wrong.exit_code, "no address" in wrong.stderr) == (78, True)
    rotated = command("runner", "rotate")
    assert rotated.exit_code == 0
    second = load_config(tmp_path / "state" / "config.toml").runner
    assert second.token not in rotated.output
    assert (second.id, second.identity, second.token == first.token) == (first.id, first.identity, False)
    assert json.loads(command("runner", "status", "--json").stdout)["labels"] == {"gpu": "a100"}
    assert "draining" in command("runner", "drain", "--reason", "kernel").stderr
    assert "active" in command("runner", "drain", "--undo").stderr
    drain_runner(first.id, actor=SYSTEM, reason="ours")
    refused = command("runner", "drain", "--undo")
    assert (refused.exit_code, "operator" in refused.stderr) == (1, True)
    (tmp_path / "state" / "config.toml").unlink()
    assert command("runner", "status").exit_code == 78


@pytest.mark.rule("Q12")
def test_the_command_line_needs_no_django() -> None:
    script = "import sys, runners.cli, runners.client; sys.exit('django' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_module_can_be_run(command: Command) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "runners.cli", "runs", "--json"], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == []


def test_the_key_of_a_line() -> None:
    assert line_key("b", 1, b"x") == line_key("b", 1, b"x")
    others = {line_key("b", 1, b"x"), line_key("b", 2, b"x"), line_key("c", 1, b"x"), line_key("b", 1, b"y")}
    assert len(others | {line_key("b", 1, b"x", "salt")}) == 5


def test_lines_of_any_kind() -> None:
    found = read_lines([b'{"command": ["x"]}\r\n', b"\xff\n", b"[" * 50_000, b'{"command": ["a\\u0000"]}'], "b")
    assert [line.number for line in found.right] == [1]
    assert sorted(found.wrong) == [2, 3, 4]
    assert "UTF-8" in found.wrong[2]


def test_ranges() -> None:
    assert ranges([3, 1, 2, 7, 9, 10]) == "1-3, 7, 9-10"
    assert ranges([]) == ""


@pytest.mark.rule("Q13")
def test_secrets_are_set_from_standard_input_or_a_file_and_never_shown(
    command: Command, tenant_row: Any, tmp_path: Path
) -> None:
    assert command("secret", "set", "TOKEN", input="hunter2-and-more\n").exit_code == 0
    key = tmp_path / "key"
    key.write_text("first line of it\nsecond line of it\n")
    assert "has a new value" in command("secret", "set", "TOKEN", "--file", str(key)).stderr
    listed = command("secret", "list", "--json")
    assert [one["name"] for one in json.loads(listed.stdout)] == ["TOKEN"]
    row = Secret.objects.get()
    assert unseal(tenant_row.pk, "TOKEN", bytes(row.value)) == "first line of it\nsecond line of it"
    refused = command("secret", "set", "TOKEN", input="short")
    assert refused.exit_code == 1
    assert "at least 8 bytes" in refused.stderr
    assert "short\n" not in refused.stderr
    assert command("secret", "delete", "TOKEN").exit_code == 0
    assert command("secret", "delete", "TOKEN").exit_code == 1


@pytest.mark.rule("Q13")
@pytest.mark.parametrize("token", ["wht_a-secret\nof two lines", "wht_a-sécret", "wht_a-secret and-more"])
def test_a_token_that_is_none_is_not_quoted(command: Command, tmp_path: Path, token: str) -> None:
    """Sent, it would be refused far below, by an error that quotes it."""
    file = tmp_path / "token"
    file.write_text(token)
    done = command("runs", "--token-file", str(file), "--url", "http://127.0.0.1:1")
    assert done.exit_code == 78
    assert "This is no token" in done.stderr
    assert "secret" not in done.stderr + done.stdout


@pytest.mark.rule("Q13")
def test_a_token_file_that_is_no_text_is_said(command: Command, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    done = command("runs", "--token-file", str(tmp_path / "token"), "--url", "http://127.0.0.1:1")
    assert (done.exit_code, "holds no token: it is not text" in done.stderr) == (78, True)


@pytest.mark.rule("Q2")
def test_an_enrolment_that_could_not_be_stored_spends_no_use_of_its_token(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WHARFINGER_RUNNER_STATE", str(tmp_path / "file" / "below"))
    monkeypatch.setenv("WHARFINGER_ENROLMENT_TOKEN", "whe_something")
    # Nobody listens there: asked, it would wait for somebody to.
    done = command("runner", "enrol", "--url", "http://127.0.0.1:1")
    assert (done.exit_code, "cannot be" in done.stderr) == (78, True)


def test_a_configuration_with_another_shape_is_said(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text("runner = 1\n")
    monkeypatch.setenv("WHARFINGER_RUNNER_STATE", str(tmp_path))
    done = command("runner", "status")
    assert (done.exit_code, "runner must be a table" in done.stderr) == (78, True)
