"""The running server held against its own OpenAPI document by schemathesis."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
RUNNER_PATHS = "^/api/v1/runner(/|$)"
ENTRY = "from schemathesis.cli import schemathesis; schemathesis()"


def conform(url: str, token: str, directory: Path, paths: Sequence[str], *, seconds: int, seed: int | None) -> None:
    """Every operation with examples, edges and noise, as this caller. With a seed the same calls each time.

    Raises AssertionError with what was found. What schemathesis remembers it leaves in the directory.
    """
    command = [
        *(sys.executable, "-c", ENTRY, "run", f"{url}/api/schema/?format=json", *paths),
        *("--header", f"Authorization: Bearer {token}", "--checks", ",".join(CHECKS), "--continue-on-failure"),
        *("--max-time", str(seconds), "--no-color", "--warnings", "off", "--request-timeout", "10"),
        *(() if seed is None else ("--seed", str(seed), "--generation-deterministic")),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=directory, timeout=3 * seconds + 60
    )
    assert done.returncode == 0, f"{done.stdout[-12_000:]}\n{done.stderr[-2000:]}"
