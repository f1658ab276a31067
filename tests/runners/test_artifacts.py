"""Artifacts on the server: stored by who holds the run, seen by its tenant, gone after their time, never orphaned."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.files.storage import FileSystemStorage, storages
from django.db import connection
from django.test import override_settings

from admission.models import Run
from admission.services.deleting import delete_tenant
from admission.services.runs import Settlement, settle_runs
from controlplane.core.audit import SYSTEM
from runners.models import Artifact
from runners.services import artifacts
from runners.services.artifacts import Announced, ArtifactTooBig, StorageFailed, UploadBroken, store_artifact
from runners.services.logs import HoldSuperseded
from runners.services.retention import delete_artifacts
from tests import ledger
from tests.api.conftest import Caller
from tests.runners.conftest import RunnerCaller, make_runner, named

DATA = b"what the run left" * 100


@pytest.fixture(autouse=True)
def place(tmp_path: Path, settings: Any) -> Iterator[Path]:
    """The storage of this test."""
    stored = {**settings.STORAGES}
    stored["artifacts"] = {**stored["artifacts"], "OPTIONS": {"location": str(tmp_path / "kept")}}
    with override_settings(STORAGES=stored):
        yield tmp_path / "kept"


@pytest.fixture
def held(tenant: Caller, runner: RunnerCaller) -> dict[str, Any]:
    """A run that the runner has started."""
    ledger.submit(tenant.tenant)
    [given] = runner.claimed()
    runner.post("/runner/starts", {"runs": [named(given)]})
    return given


def bring(
    runner: RunnerCaller, given: dict[str, Any], name: str = "out/a.txt", data: bytes = DATA, **changes: Any
) -> Any:
    told = {
        "epoch": given["epoch"],
        "token": given["job_token"],
        "sha256": hashlib.sha256(data).hexdigest(),
        **changes,
    }
    return runner._client.post(
        f"/api/v1/runner/runs/{given['run']}/artifacts?epoch={told['epoch']}",
        data,
        content_type="application/octet-stream",
        headers={"Job-Token": told["token"], "Artifact-Sha256": told["sha256"]},
        query_params={"epoch": told["epoch"], "name": name},
    )


def end(runner: RunnerCaller, given: dict[str, Any]) -> None:
    runner.post("/runner/results", {"results": [named(given, ending="succeeded", exit_code=0)]})


def blobs(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}


def age(**columns: str) -> None:
    changes = ", ".join(f"{name} = {name} - interval '{by}'" for name, by in columns.items())
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE runners_artifact SET {changes}")  # noqa: S608 - from this module


@pytest.mark.rule("Q8")
@pytest.mark.rule("X3")
def test_stored_listed_and_fetched(tenant: Caller, runner: RunnerCaller, held: dict[str, Any], place: Path) -> None:
    for name, data in {"out/a.html": DATA, "empty": b"", 'odd "näme";.txt': b"x"}.items():
        assert bring(runner, held, name, data).status_code == 200
    listed = tenant.get(f"/runs/{held['run']}/artifacts").json()
    assert [one["name"] for one in listed["results"]] == ["empty", 'odd "näme";.txt', "out/a.html"]
    assert listed["kept_until"] is None
    end(runner, held)
    assert tenant.get(f"/runs/{held['run']}/artifacts").json()["kept_until"] > "2"
    for one in listed["results"]:
        path = one["url"].removeprefix("http://testserver/api/v1")
        answer = tenant.get(path)
        data = b"".join(answer.streaming_content)
        assert hashlib.sha256(data).hexdigest() == one["sha256"] == answer["Artifact-Sha256"]
        assert answer["Content-Disposition"].startswith("attachment")
        assert answer["X-Content-Type-Options"] == "nosniff"
        assert "sandbox" in answer["Content-Security-Policy"]
        assert "\n" not in answer["Content-Disposition"]
    assert len(blobs(place)) == 3


@pytest.mark.rule("Q8")
@pytest.mark.rule("O3")
def test_another_tenant_sees_nothing(
    tenant: Caller, stranger: Caller, runner: RunnerCaller, held: dict[str, Any], nobody: Caller
) -> None:
    bring(runner, held)
    path = f"/runs/{held['run']}/artifacts"
    for address in (path, f"{path}/out/a.txt"):
        found = tenant.get(address)
        assert found.status_code == 200
        assert not found.streaming or b"".join(found.streaming_content) == DATA
        assert stranger.get(address).status_code == 404
        assert nobody.get(address).status_code == 401
        assert runner.get(address).status_code == 401
    for name in ("missing", "../out/a.txt", "%2e%2e/a", "out/a.txt%00"):
        assert tenant.get(f"{path}/{name}").status_code == 404


@pytest.mark.rule("Q8")
@pytest.mark.rule("Q6")
def test_only_who_holds_it_may_bring_anything(
    tenant: Caller, runner: RunnerCaller, held: dict[str, Any], place: Path
) -> None:
    other = make_runner()
    assert bring(runner, held, token="whj_wrong").status_code == 401
    assert bring(runner, held, epoch=held["epoch"] + 1).status_code == 401
    assert bring(other, held).status_code == 401
    runner.post("/runner/results", {"results": [named(held, ending="returned", reason="no")]})
    # Taken back into the queue its epoch has moved on, and the old one's token opens the late window alone.
    assert Run.objects.get(pk=held["run"]).state == "queued"
    assert bring(runner, held, epoch=held["epoch"] + 1).status_code == 401
    assert blobs(place) == set()


@pytest.mark.rule("Q8")
def test_late_within_the_window_and_not_after(tenant: Caller, runner: RunnerCaller, held: dict[str, Any]) -> None:
    end(runner, held)
    assert bring(runner, held, "late").status_code == 200
    with connection.cursor() as cursor:
        cursor.execute("UPDATE admission_attempt SET released_at = released_at - interval '601 s'")
    refused = bring(runner, held, "too late")
    assert (refused.status_code, refused.json()["code"]) == (409, "superseded")


@pytest.mark.rule("Q8")
def test_the_same_again_is_fine_and_another_is_not(
    tenant: Caller, runner: RunnerCaller, held: dict[str, Any], place: Path
) -> None:
    assert [bring(runner, held).status_code for _ in range(3)] == [200, 200, 200]
    assert len(blobs(place)) == 1
    refused = bring(runner, held, data=b"another")
    assert (refused.status_code, refused.json()["code"]) == (409, "artifact_exists")


@pytest.mark.rule("Q8")
def test_caps_of_one_file_of_all_and_of_the_number(
    tenant: Caller, runner: RunnerCaller, held: dict[str, Any], settings: Any, place: Path
) -> None:
    caps = {"artifact_file_bytes": 100, "artifact_run_bytes": 150, "artifact_count": 3}
    with override_settings(CONTROLPLANE={**settings.CONTROLPLANE, **caps}):
        sizes = {"a": 100, "b": 101, "c": 51, "d": 50, "e": 0, "f": 0}
        answers = {name: bring(runner, held, name, b"x" * size).status_code for name, size in sizes.items()}
    assert answers == {"a": 200, "b": 413, "c": 413, "d": 200, "e": 200, "f": 413}
    assert len(blobs(place)) == 3


@pytest.mark.rule("Q8")
@pytest.mark.parametrize("name", ["../x", "/x", "a/../b", "", "a\\b", "a%00", "a%0ab", "x" * 501, "a//b"])
def test_names_that_lead_elsewhere_are_refused(
    tenant: Caller, runner: RunnerCaller, held: dict[str, Any], name: str, place: Path
) -> None:
    assert bring(runner, held, name.replace("%00", "\x00").replace("%0a", "\n")).status_code == 400
    assert blobs(place) == set()


@pytest.mark.rule("Q8")
def test_what_does_not_sum_up_is_not_kept(
    tenant: Caller, runner: RunnerCaller, held: dict[str, Any], place: Path
) -> None:
    assert bring(runner, held, sha256="0" * 64).status_code == 503
    assert bring(runner, held, sha256="short").status_code == 400
    assert tenant.get(f"/runs/{held['run']}/artifacts").json()["results"] == []
    assert bring(runner, held).status_code == 200  # a repeat takes the place of what broke off
    age(doomed_at="2 minutes")
    assert delete_artifacts() == 1
    assert len(blobs(place)) == 1


class BrokenStream:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, size: int = -1) -> bytes:
        data, self.data = self.data[:10], self.data[10:]
        return data


def hold(tenant: Caller) -> tuple[Any, tuple[int, int]]:
    driver = ledger.make_driver()
    ledger.submit(tenant.tenant)
    [admitted] = ledger.admit_all(driver)
    [held] = ledger.start(driver, [admitted])
    return driver, held


def announced(data: bytes = DATA, name: str = "a") -> Announced:
    return Announced(name, len(data), hashlib.sha256(data).digest())


@pytest.mark.rule("Q8")
def test_nothing_stays_in_the_storage_without_a_row_wherever_it_breaks_off(
    tenant: Caller, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, held = hold(tenant)
    with pytest.raises(UploadBroken):
        store_artifact(driver, *held, announced(), BrokenStream(DATA[:50]))

    def dies(*_: object) -> int:
        raise KeyboardInterrupt  # the process ends between the bytes and the row

    monkeypatch.setattr(artifacts, "execute", dies)
    with pytest.raises(KeyboardInterrupt):
        store_artifact(driver, *held, announced(), BrokenStream(DATA))
    monkeypatch.undo()
    assert len(blobs(place)) == 2
    assert delete_artifacts() == 0  # neither is past its time: they may be under way
    assert {row.key for row in Artifact.objects.all()} == blobs(place)
    age(reserved_at="2 hours")
    delete_artifacts()
    age(doomed_at="2 minutes")
    delete_artifacts()
    assert blobs(place) == set()
    assert not Artifact.objects.exists()


@pytest.mark.rule("Q8")
def test_an_upload_that_was_given_up_meanwhile_leaves_nothing(
    tenant: Caller, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, held = hold(tenant)
    saved = FileSystemStorage.save

    def slow(self: Any, name: str, content: Any, max_length: int | None = None) -> str:
        done = saved(self, name, content, max_length)
        age(reserved_at="2 hours")
        delete_artifacts()
        return done

    monkeypatch.setattr(FileSystemStorage, "save", slow)
    with pytest.raises(StorageFailed):
        store_artifact(driver, *held, announced(), BrokenStream(DATA))
    assert blobs(place) == set()


@pytest.mark.rule("Q8")
def test_a_storage_that_fails_is_said_to_be_away_and_asked_again(
    tenant: Caller, runner: RunnerCaller, held: dict[str, Any], place: Path
) -> None:
    place.write_text("a file where the directory should be")
    answer = bring(runner, held)
    assert (answer.status_code, answer.json()["code"]) == (503, "storage_unavailable")
    assert answer["Retry-After"] == "2"
    place.unlink()
    assert bring(runner, held).status_code == 200


@pytest.mark.rule("Q8")
def test_gone_after_their_time_and_with_their_tenant(tenant: Caller, place: Path, settings: Any) -> None:
    driver, first = hold(tenant)
    store_artifact(driver, *first, announced(), BrokenStream(DATA))
    settle_runs(driver, [Settlement(*first, "succeeded")])
    hold(tenant)
    age(reserved_at="31 days")
    delete_artifacts()
    assert Artifact.objects.get().doomed_at is None  # its run ended just now
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE admission_run SET finished_at = finished_at - interval '31 days' WHERE id = %s", first[:1]
        )
    delete_artifacts()
    assert Artifact.objects.get().doomed_at is not None
    assert tenant.get(f"/runs/{first[0]}/artifacts").json()["results"] == []
    age(doomed_at="2 minutes")
    assert delete_artifacts() == 1
    assert blobs(place) == set()


@pytest.mark.rule("Q8")
@pytest.mark.rule("A26")
def test_a_deleted_tenants_artifacts_go_with_it(tenant: Caller, place: Path) -> None:
    driver, held = hold(tenant)
    store_artifact(driver, *held, announced(), BrokenStream(DATA))
    settle_runs(driver, [Settlement(*held, "succeeded")])
    assert delete_tenant(tenant.tenant, actor=SYSTEM, reason="gone")
    assert len(blobs(place)) == 1
    age(doomed_at="2 minutes")
    assert delete_artifacts() == 1
    assert blobs(place) == set()


@pytest.mark.rule("Q8")
@pytest.mark.django_db(transaction=True)
def test_two_uploads_at_once_do_not_pass_the_cap_together(connect: Any, settings: Any, place: Path) -> None:
    tenant = Caller("", ledger.make_tenant())
    driver, held = hold(tenant)
    gate = connect()
    gate.execute("SELECT id FROM admission_attempt WHERE run_id = %s FOR UPDATE", held[:1])
    caps = {"artifact_run_bytes": len(DATA), "artifact_file_bytes": len(DATA)}
    with override_settings(CONTROLPLANE={**settings.CONTROLPLANE, **caps}), ledger.connected() as observer:
        calls = [
            ledger.Concurrent(store_artifact, driver, *held, announced(name=name), BrokenStream(DATA)) for name in "ab"
        ]
        for call in calls:
            ledger.until_waiting(observer, call)
        gate.commit()
        outcomes = []
        for call in calls:
            try:
                outcomes.append(call.result())
            except ArtifactTooBig:
                outcomes.append("refused")
    assert sorted(map(str, outcomes)) == ["True", "refused"]
    assert len(blobs(place)) == 1


@pytest.mark.rule("Q8")
def test_a_hold_that_moved_on_stores_nothing(tenant: Caller, place: Path) -> None:
    driver, (run, epoch) = hold(tenant)
    with pytest.raises(HoldSuperseded):
        store_artifact(ledger.make_driver(), run, epoch, announced(), BrokenStream(DATA))
    with pytest.raises(HoldSuperseded):
        store_artifact(driver, run, epoch + 1, announced(), BrokenStream(DATA))
    assert blobs(place) == set()
    assert storages["artifacts"] is not None
