"""The systemd unit of a runner: it is one, it is hardened, and it names what the program has."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from runners.agent.agent import ExitCode
from runners.cli import app

UNIT = Path(__file__).parents[2] / "deploy" / "wharfinger-runner.service"
HARDENED = (
    "NoNewPrivileges=yes",
    "ProtectSystem=strict",
    "PrivateDevices=yes",
    "CapabilityBoundingSet=",
    "UMask=0077",
)


def settings() -> list[tuple[str, str]]:
    lines = [line for line in UNIT.read_text().splitlines() if line and not line.startswith(("#", "["))]
    return [(name, value) for name, _, value in (line.partition("=") for line in lines)]


@pytest.mark.rule("Q12")
def test_systemd_takes_it(tmp_path: Path) -> None:
    found = settings()
    assert all(name.isalpha() for name, _ in found)
    assert set(HARDENED) <= {f"{name}={value}" for name, value in found}
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return  # The parse above is what can be had here.
    # Neither the program nor its user need be on this machine.
    checked = tmp_path / "wharfinger-runner.service"
    text = (
        UNIT.read_text().replace("/usr/bin/env wharfinger", "/bin/true").replace("User=wharfinger-runner", "User=root")
    )
    checked.write_text(text)
    done = subprocess.run([analyze, "verify", "--man=no", checked], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.rule("Q12")
def test_it_names_what_the_program_has() -> None:
    found = dict(settings())
    dead = {str(int(code)) for code in (ExitCode.CREDENTIAL, ExitCode.CONFIGURATION)}
    assert set(found["RestartPreventExitStatus"].split()) == dead
    for name in ("ExecStart", "ExecStartPre"):
        words = found[name].removeprefix("/usr/bin/env wharfinger ").split()
        assert CliRunner().invoke(app, [*words, "--help"]).exit_code == 0
