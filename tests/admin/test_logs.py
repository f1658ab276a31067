"""Output in the admin: a tail that begins with a line, pieces that follow without a gap, a whole download."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from admission.models import Attempt
from controlplane.fleet.logs import TAIL_BYTES
from runners.models import LogEnd
from runners.services.logs import append_log


def stored(world: dict[str, Any]) -> tuple[int, bytes]:
    run = world["live"][0][1][0][0]
    return run, Attempt.objects.get(run=run).log_size


def test_the_tail_is_bounded_and_begins_with_a_line(world: dict[str, Any], admin: Client) -> None:
    run, size = stored(world)
    piece = admin.get(reverse("admin:run_log", args=[run])).json()
    assert TAIL_BYTES - 200 < piece["next"] - piece["start"] <= TAIL_BYTES
    assert (piece["size"], piece["next"], piece["ended"]) == (size, size, False)
    assert piece["text"].startswith("[0")


def test_following_gives_exactly_what_came_since(world: dict[str, Any], admin: Client) -> None:
    driver, held = world["live"][0]
    address = reverse("admin:run_log", args=[held[0][0]])
    first = admin.get(address).json()
    assert admin.get(address, {"after": first["next"]}).json()["text"] == ""
    line = "half a character: ä".encode()
    append_log(driver, *held[0], first["size"], line[:-1])
    second = admin.get(address, {"after": first["next"]}).json()
    assert second["text"] == "half a character: "
    append_log(driver, *held[0], first["size"] + len(line) - 1, line[-1:])
    assert admin.get(address, {"after": second["next"]}).json()["text"] == "ä"


@pytest.mark.rule("Q8")
def test_output_that_was_not_delivered_is_said(world: dict[str, Any], admin: Client) -> None:
    run, size = stored(world)
    assert admin.get(reverse("admin:run_log", args=[run])).json()["missing"] == 0
    LogEnd.objects.create(run_id=run, attempt=1, size=size + 7)
    assert admin.get(reverse("admin:run_log", args=[run])).json()["missing"] == 7


def test_a_download_is_the_whole_output_as_a_file(world: dict[str, Any], admin: Client) -> None:
    run, size = stored(world)
    response = admin.get(reverse("admin:run_log_download", args=[run]))
    assert len(b"".join(response.streaming_content)) == size  # type: ignore[attr-defined]
    assert response["Content-Disposition"] == f'attachment; filename="run-{run}-attempt-1.log"'
    assert response["Content-Type"] == "text/plain; charset=utf-8"


def test_an_unknown_run_attempt_or_offset_is_not_found(world: dict[str, Any], admin: Client) -> None:
    run, _ = stored(world)
    assert admin.get(reverse("admin:run_log", args=[10**9])).status_code == 404
    assert admin.get(reverse("admin:run_log", args=[run]), {"attempt": "7"}).status_code == 404
    assert admin.get(reverse("admin:run_log", args=[run]), {"after": "x"}).status_code == 404
