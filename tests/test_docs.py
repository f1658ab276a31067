"""The documentation says what the code does."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from controlplane.management.commands.settings_page import settings_page
from runners.cli.page import cli_page

ROOT = Path(__file__).resolve().parents[1]


def test_the_page_of_settings_is_what_the_settings_say() -> None:
    assert (ROOT / "docs/settings.md").read_text() == settings_page(), (
        "run: manage.py settings_page > docs/settings.md"
    )


@pytest.mark.rule("X5")
def test_the_page_of_the_command_line_is_what_the_commands_say() -> None:
    assert (ROOT / "docs/cli.md").read_text() == cli_page(), "run: python -m runners.cli.page > docs/cli.md"


def test_every_link_of_the_readme_leads_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    targets = [t for t in re.findall(r"\]\(([^)]+)\)", text) if "://" not in t]
    assert targets
    assert [t for t in targets if not (ROOT / t).exists()] == []


def test_no_registry_host_and_no_path_of_a_machine_is_named_in_the_sources() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    forbidden = (
        "pypi." + "org",
        "deb.debian" + ".org",
        "registry.npmjs" + ".org",
        "/work" + "/main",
        "docker" + ".io/",
    )
    found = []
    for name in tracked:
        path = ROOT / name
        if path.suffix == ".png":
            continue
        text = path.read_text(errors="replace")
        found += [f"{name}: {word}" for word in forbidden if word in text]
    assert found == []
