"""No call gets a 5xx, or an answer that the schema does not promise (rule O3). Full length: `make soak`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import ledger
from tests.api.conformance import RUNNER_PATHS, conform
from tests.api.conftest import tenant_caller
from tests.runners.conftest import make_runner, named

CI, SOAK = (8, 1), (600, None)
"""Seconds and seed: the same calls each time where a failure would hold up everybody."""

pytestmark = [pytest.mark.rule("O3"), pytest.mark.timeout(2400)]


@pytest.fixture
def tokens(live_server: Any, transactional_db: None, make_operator: Any) -> dict[str, str]:
    """Three callers, in a fleet where something is queued, running and held."""
    tenant = tenant_caller()
    ledger.submit(tenant.tenant, 20)
    runner = make_runner(slots=4)
    runner.post("/runner/starts", {"runs": [named(given) for given in runner.claimed()[:2]]})
    return {"tenant": tenant.token, "operator": make_operator(is_superuser=True).token, "runner": runner.token}


LENGTHS = [pytest.param(CI, id="ci"), pytest.param(SOAK, id="full", marks=pytest.mark.soak)]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("who", ["tenant", "operator", "runner"])
def test_every_path_answers_as_documented(
    live_server: Any, tokens: dict[str, str], tmp_path: Path, who: str, length: tuple[int, int | None]
) -> None:
    paths = ("--include-path-regex" if who == "runner" else "--exclude-path-regex", RUNNER_PATHS)
    seconds, seed = length
    conform(live_server.url, tokens[who], tmp_path, paths, seconds=seconds, seed=seed)
