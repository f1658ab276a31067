"""Collecting what a run left, from a container, from a directory, and from hostile streams."""

from __future__ import annotations

import io
import itertools
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from admission.spec import parse_spec
from runners.agent.artifact_names import wrong_name
from runners.agent.artifacts import Collected, Limits
from runners.agent.clock import now
from runners.agent.executors import disk
from runners.agent.executors.archive import MOST_HEADER_BYTES, TooMuch, take_archive
from runners.agent.executors.docker import DockerExecutor
from runners.agent.executors.process import ProcessExecutor
from runners.agent.executors.tree import collect_from_tree
from tests.runners.agent.conftest import LABELS, assignment

Collect = Callable[..., Collected]

LEAVE = """
import os
os.makedirs('out/deep')
open('out/a.txt', 'w').write('first')
open('out/deep/b.bin', 'wb').write(bytes(range(256)) * 4096)
open('one', 'w').write('single')
open('empty', 'w').close()
open('unwanted', 'w').write('no')
os.symlink('/etc/passwd', 'out/passwd')
os.symlink('/etc', 'etc')
os.mkfifo('out/fifo')
open('out/odd\\nname', 'w').write('x')
open('out/big', 'wb').truncate(3 << 20)
os.link('out/a.txt', 'out/hard')
os.chmod('one', 0)
"""
WANTED = ["out", "one", "empty", "missing", "etc/passwd"]


@pytest.fixture
def collection(tmp_path: Path) -> Collected:
    return Collected(tmp_path, Limits(file_bytes=2 << 20, run_bytes=4 << 20, files=10))


def kept(collection: Collected) -> dict[str, bytes]:
    return {one.name: one.path.read_bytes() for one in collection.kept}


def run_and_collect(executor: Any, collection: Collected, script: str = LEAVE, **spec: Any) -> Any:
    given = assignment(["python", "-c", script], **{"artifacts": WANTED, **spec})
    output = bytearray()
    execution = executor.start(given, output.extend, LABELS)
    try:
        end = execution.wait(now() + 60)
        execution.collect(collection)
    finally:
        execution.remove()
    return end, bytes(output)


def assert_only_what_was_asked(collection: Collected) -> None:
    found = kept(collection)
    hard = {"out/a.txt", "out/hard"} & set(found)
    assert set(found) - hard == {"out/deep/b.bin", "one", "empty"}
    assert found["out/deep/b.bin"] == bytes(range(256)) * 4096
    assert (found["one"], found["empty"]) == (b"single", b"")
    notes = "\n".join(collection.said())
    for name, why in {
        "out/passwd": "a link",
        "out/fifo": "no regular file",
        r"out/odd\nname": "characters that no name may have",
        "out/big": "above the 2097152 of one file",
        "missing": "no such file",
    }.items():
        assert any(name in line and why in line for line in notes.splitlines()), (name, notes)
    assert b"root:" not in b"".join(found.values())


@pytest.mark.rule("Q8")
def test_from_a_process_whose_directory_is_gone_afterwards(scratch: Path, collection: Collected) -> None:
    end, output = run_and_collect(ProcessExecutor(), collection)
    assert end.code == 0, output
    assert_only_what_was_asked(collection)
    assert "out/a.txt" not in kept(collection)  # it has two names: it may be somebody else's file
    assert any("'etc/passwd'" in line for line in collection.said())
    assert list(scratch.iterdir()) == []


@pytest.mark.rule("Q8")
@pytest.mark.rule("P17")
def test_from_a_container_that_has_ended(docker_executor: DockerExecutor, collection: Collected) -> None:
    end, output = run_and_collect(docker_executor, collection)
    assert end.code == 0, output
    # By way of a link the image's own file may be had: nothing of this machine.
    through_link = kept(collection).get("etc/passwd", b"")
    assert through_link != Path("/etc/passwd").read_bytes()
    collection.kept = [one for one in collection.kept if one.name != "etc/passwd"]
    assert_only_what_was_asked(collection)
    assert docker_executor.adapter.list_ids(LABELS) == {}


@pytest.mark.rule("P17")
def test_a_container_that_keeps_something_still_may_write_nowhere_else(
    docker_executor: DockerExecutor, collection: Collected
) -> None:
    script = """
import os
for place in ('/', '/etc', '/usr', '/var', '/home', '/root', '/work/given'):
    try:
        open(place + ('' if place == '/work/given' else '/x'), 'w')
        print('WROTE', place)
    except OSError as error:
        print(type(error).__name__)
open('/work/mine', 'w').write('x')
print(open('/work/given').read())
"""
    end, output = run_and_collect(
        docker_executor, collection, script, artifacts=["mine", "given"], files={"given": {"text": "input"}}
    )
    assert end.code == 0
    assert b"WROTE" not in output
    assert kept(collection) == {"mine": b"x", "given": b"input"}


@pytest.mark.rule("P17")
def test_what_a_container_writes_to_keep_it_is_bounded(
    docker_executor: DockerExecutor, collection: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "LOOK_SECONDS", 0.3)
    script = """
import time
try:
    open('one', 'wb').write(b'x' * (3 << 20))
except OSError as error:
    print(error, flush=True)
for n in range(4):
    open(f'part{n}', 'wb').write(b'x' * (1 << 20))
time.sleep(60)
"""
    end, output = run_and_collect(
        docker_executor, collection, script, artifacts=["part0"], resources={"disk_mib": 2}, stop_grace_seconds=0
    )
    assert b"File too large" in output
    assert end.reason == "disk"
    assert "resources.disk_mib is 2" in end.detail


# -- hostile streams ------------------------------------------------------------------------------------------------


def packed(*members: tuple[str, bytes, bytes], **changes: Any) -> Iterator[bytes]:
    """A tar of (name, type, content), in pieces of odd sizes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, content in members:
            entry = tarfile.TarInfo(name)
            entry.type, entry.size = kind, len(content)
            entry.linkname = "/etc/passwd" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            for attribute, value in changes.items():
                setattr(entry, attribute, value)
            archive.addfile(entry, io.BytesIO(content) if content else None)
    data = out.getvalue()
    return (data[at : at + 777] for at in range(0, len(data), 777))


@pytest.mark.rule("Q8")
@pytest.mark.parametrize(
    "name",
    ["../out", "/etc/cron.d/x", "a/../../b", "a//b", "./../x", "a/./b", "x\\y", "a\x1b[2Jb", "a\u202eb", "x" * 501],
)
def test_no_name_leads_out_of_the_collection_or_deceives(collection: Collected, name: str) -> None:
    take_archive(packed((name, tarfile.REGTYPE, b"x")), "", collection)
    assert collection.kept == []
    assert "is not kept" in collection.said()[0]
    assert collection.said()[0].isprintable()
    assert {path.parent for path in collection.directory.rglob("*")} <= {collection.directory}
    assert wrong_name(name)


@pytest.mark.rule("Q8")
@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]
)
def test_only_regular_files_are_taken(collection: Collected, kind: bytes) -> None:
    take_archive(packed(("thing", kind, b""), ("good", tarfile.REGTYPE, b"good")), "", collection)
    assert kept(collection) == {"good": b"good"}
    assert "'thing' is not kept" in collection.said()[0]


@pytest.mark.rule("Q8")
def test_a_bomb_of_zeros_is_not_read_to_its_end(collection: Collected) -> None:
    entry = tarfile.TarInfo("bomb")
    entry.size = 5 << 30
    read = itertools.count()

    def endless() -> Iterator[bytes]:
        yield entry.tobuf()
        while True:
            next(read)
            yield bytes(1 << 20)

    with pytest.raises(TooMuch):
        take_archive(endless(), "", collection)
    assert next(read) < 100  # MiB, of 5 GiB
    assert collection.kept == []
    assert "5368709120 bytes" in collection.said()[0]


@pytest.mark.rule("Q8")
def test_sparse_files_that_pretend_to_be_small_are_not_taken(collection: Collected) -> None:
    entry = tarfile.TarInfo("sparse")
    entry.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(5 << 30),
                         "GNU.sparse.name": "sparse"}  # fmt: skip
    sparse_map = b"1\n0\n1\n".ljust(512, b"\0")
    entry.size = 512 + 1
    data = entry.tobuf(tarfile.PAX_FORMAT) + sparse_map + b"x".ljust(512, b"\0") + bytes(1024)
    take_archive(iter([data]), "", collection)
    assert collection.kept == []
    assert "no regular file" in collection.said()[0]


@pytest.mark.rule("Q8")
def test_a_header_that_would_fill_the_memory_is_refused(collection: Collected) -> None:
    header = tarfile.TarInfo("long")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, MOST_HEADER_BYTES + 1
    with pytest.raises(TooMuch, match="header"):
        take_archive(iter([header.tobuf(), bytes(2 << 20)]), "", collection)


@pytest.mark.rule("Q8")
def test_too_many_and_too_much_are_said_once_each_and_the_rest_counted(tmp_path: Path) -> None:
    bounded = Collected(tmp_path, Limits(file_bytes=10, run_bytes=25, files=3))
    members = [(f"f{n}", tarfile.REGTYPE, b"0123456789") for n in range(30)]
    take_archive(packed(*members), "out", bounded)
    assert list(kept(bounded)) == ["out/f0", "out/f1"]
    said = bounded.said()
    assert len(said) == 21
    assert said[-1] == "8 more files are not kept"


@pytest.mark.rule("Q8")
def test_a_stream_that_breaks_off_keeps_what_was_whole(collection: Collected) -> None:
    data = b"".join(packed(("a", tarfile.REGTYPE, b"whole"), ("b", tarfile.REGTYPE, b"x" * 5000)))
    with pytest.raises(tarfile.TarError):
        take_archive(iter([data[:3000]]), "", collection)
    assert kept(collection) == {"a": b"whole"}


@pytest.mark.rule("Q8")
def test_random_bytes_are_no_archive(collection: Collected) -> None:
    with pytest.raises(tarfile.TarError):
        take_archive(iter([os.urandom(4096)]), "", collection)


# -- trees ----------------------------------------------------------------------------------------------------------


@pytest.mark.rule("Q8")
def test_no_link_of_a_tree_is_followed(tmp_path: Path) -> None:
    secret, tree, place = tmp_path / "secret", tmp_path / "tree", tmp_path / "place"
    for directory in (secret, tree, place):
        directory.mkdir()
    (secret / "file").write_text("of somebody else")
    (tree / "link").symlink_to(secret)
    (tree / "direct").symlink_to(secret / "file")
    os.link(secret / "file", tree / "hard")
    (tree / "deep").mkdir()
    (tree / "deep" / "up").symlink_to("..")
    collection = Collected(place, Limits())
    collect_from_tree(tree, ["link/file", "direct", "hard", "deep", "link", "nothing"], collection)
    assert collection.kept == []
    assert len(collection.said()) == 6


@pytest.mark.rule("Q8")
def test_a_sparse_giant_in_a_tree_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    with (tmp_path / "tree" / "giant").open("wb") as file:
        file.truncate(5 << 30)
    collection = Collected(tmp_path, Limits())
    began = now()
    collect_from_tree(tmp_path / "tree", ["giant"], collection)
    assert now() - began < 1
    assert "5368709120 bytes" in collection.said()[0]


@pytest.mark.rule("Q8")
@pytest.mark.parametrize("path", ["../x", "/etc/passwd", ".", "a\nb", "a\\b", "out/../.."])
def test_paths_to_keep_are_plain_and_inside(path: str) -> None:
    with pytest.raises(ValidationError):
        parse_spec({"command": ["true"], "artifacts": [path]})
