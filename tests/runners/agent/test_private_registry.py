"""A private registry, asked by a real daemon with a secret that the run names (rules P17, Q13)."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from admission.spec import parse_spec
from runners.agent.assignment import Assignment
from runners.agent.driver import Driver
from runners.agent.executors.base import ImageUnavailable
from runners.agent.executors.docker import DockerExecutor
from runners.agent.executors.docker_adapter import DockerAdapter
from runners.agent.registry import HUB, HUB_ADDRESS, hidden_parts, login_of, registry_of
from tests.runners.agent.conftest import LABELS, eventually
from tests.runners.agent.registry import Registry
from tests.runners.agent.stub import StubControl

pytestmark = [pytest.mark.rule("P17", "Q13"), pytest.mark.timeout(120)]
USER, PASSWORD = "puller", f"pw-{uuid4().hex}"
PAIR = f"{USER}:{PASSWORD}"


@pytest.fixture
def registry(adapter: DockerAdapter) -> Iterator[Registry]:
    with Registry(f"private-{uuid4().hex[:12]}", login=(USER, PASSWORD)) as registry:
        registry.release.set()
        yield registry
    if adapter.image_id(registry.reference) is not None:
        adapter._client().remove_image(registry.reference, force=True)


@pytest.fixture
def executor() -> Iterator[DockerExecutor]:
    executor = DockerExecutor()
    yield executor
    executor.sweep(LABELS)
    executor.adapter.close()


def given(image: str, value: str = "", **spec: Any) -> Assignment:
    named = {"registry_secret": "PULL"} if value else {}
    parsed = parse_spec({"command": ["/made-for"], "image": image, **named, **spec})
    return Assignment(run=1, epoch=1, attempt=1, tenant="t", spec=parsed, registry=value)


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(ImageUnavailable) as caught:
        call()
    assert caught.value.reason == "image_unavailable"
    return str(caught.value)


@pytest.mark.parametrize("form", ["pair", "docker's JSON"])
def test_the_right_credentials_pull_and_are_nowhere_afterwards(
    registry: Registry, executor: DockerExecutor, adapter: DockerAdapter, form: str, capfd: Any
) -> None:
    host = registry_of(registry.reference)
    entry = {"auth": base64.b64encode(PAIR.encode()).decode()}
    value = PAIR if form == "pair" else json.dumps({"auths": {f"http://{host}": entry, "other.example": entry}})
    control = StubControl([given(registry.reference, value)])
    told: list[str] = []
    driver = Driver(
        control, executor, slots=1, labels=LABELS, on_event=lambda name, /, **more: told.append(f"{name} {more}")
    )
    driver.start()
    try:
        eventually(lambda: control.results, 60)
    finally:
        assert driver.stop_now(30)
    assert adapter.image_id(registry.reference) is not None
    assert registry.logins == {PAIR}
    # It was made and started from that image: what is in it cannot be executed.
    (result,) = control.results.values()
    assert result.exit_code in {126, 127}
    assert "pulling" in [text.split()[0] for text in told]
    seen = "\n".join([*told, repr(control.results), *capfd.readouterr()])
    for part in hidden_parts(value):
        assert part not in seen


def test_wrong_credentials_and_none_are_told_apart_and_say_what_to_do(
    registry: Registry, executor: DockerExecutor, adapter: DockerAdapter
) -> None:
    wrong = refusal(lambda: executor.prepare(given(registry.reference, f"{USER}:not-it-{PASSWORD[:4]}"), print))
    assert "unauthorized" in wrong
    assert "'PULL'" in wrong
    assert "wharfinger secret set PULL" in wrong
    assert "not-it" not in wrong
    none = refusal(lambda: executor.prepare(given(registry.reference), print))
    assert "name them in the run's registry_secret" in none
    assert adapter.image_id(registry.reference) is None


def test_what_is_in_the_secret_decides_for_which_registry_it_serves() -> None:
    pair = {"auth": base64.b64encode(PAIR.encode()).decode()}
    login = {"username": USER, "password": PASSWORD}
    many = json.dumps({"auths": {HUB_ADDRESS: pair, "ghcr.io": {"identitytoken": "an-id-token"}}})

    def asked(image: str, value: str) -> dict[str, str]:
        return login_of(given(image, value).spec, value)

    assert asked("python:3-slim", PAIR) == {**login, "serveraddress": HUB_ADDRESS}
    assert asked("team/image", many) == {**login, "serveraddress": HUB_ADDRESS}
    assert asked(f"index.{HUB}/team/image", many) == {**login, "serveraddress": HUB_ADDRESS}
    assert asked("ghcr.io/team/image@sha256:" + "0" * 64, many) == {
        "identitytoken": "an-id-token",
        "serveraddress": "ghcr.io",
    }
    assert asked("localhost/x", PAIR)["serveraddress"] == "localhost"
    assert login_of(given("python:3-slim").spec, "") == {}
    elsewhere = refusal(lambda: asked("quay.io/x", many))
    assert "no usable credentials for quay.io" in elsewhere
    for broken in ("no-colon-in-it", ":only-a-password", "{not json at all", '{"auths": []}', "[1, 2, 3, 4]"):
        text = refusal(lambda value=broken: asked("quay.io/x", value))
        assert "cannot be read as a registry's credentials" in text
        assert broken not in text
    assert set(hidden_parts(PAIR)) == {PAIR, PASSWORD}
    assert {PAIR, PASSWORD, "an-id-token", many} <= set(hidden_parts(many))


def test_when_an_image_is_fetched_is_what_the_run_says(
    registry: Registry, executor: DockerExecutor, adapter: DockerAdapter
) -> None:
    image = registry.reference
    never = refusal(lambda: executor.prepare(given(image, PAIR, pull="never"), print))
    assert "never to pull" in never
    assert not registry.logins
    executor.prepare(given(image, PAIR), print)
    assert executor.prepared(given(image, PAIR))
    asked = registry.manifests
    executor.prepare(given(image, PAIR), print)
    executor.prepare(given(image, PAIR, pull="never"), print)
    assert registry.manifests == asked
    # Always: each run asks the registry, also where the image is here; who may not read it is not given it.
    assert not executor.prepared(given(image, PAIR, pull="always"))
    executor.prepare(given(image, PAIR, pull="always"), print)
    assert registry.manifests > asked
    assert "at every start" in refusal(lambda: executor.prepare(given(image, pull="always"), print))
