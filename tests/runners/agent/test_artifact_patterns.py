"""Patterns among the paths to keep: what they match, in a tree and in a container, and what a hostile run may do."""

from __future__ import annotations

import os
import tarfile
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from admission.spec import parse_spec
from runners.agent.artifact_patterns import Pattern, is_pattern
from runners.agent.artifacts import Collected, Limits
from runners.agent.executors import tree
from runners.agent.executors.archive import take_archive
from runners.agent.executors.docker import DockerExecutor
from runners.agent.executors.process import ProcessExecutor
from runners.agent.executors.tree import collect_from_tree
from tests.runners.agent.test_artifacts import kept, packed, run_and_collect

pytestmark = pytest.mark.rule("Q8")


@pytest.mark.parametrize(
    ("pattern", "matched", "others"),
    [
        ("*.txt", ["a.txt", "deep.txt/all/of/it"], ["out/a.txt", ".hidden.txt", "a.txt2", "atxt"]),
        ("out/*", ["out/a", "out/deep/b"], ["out", "out/.a", "other/a"]),
        ("out/.*", ["out/.a"], ["out/a", "out"]),
        ("**/*.xml", ["a.xml", "x/y/z/a.xml", "x/a.xml/below"], [".git/a.xml", "x/.git/a.xml", "a.xmlx"]),
        ("out/**/r?.csv", ["out/r1.csv", "out/a/b/r2.csv"], ["out/r10.csv", "r1.csv"]),
        ("out/**", ["out", "out/a", "out/.hidden"], ["outer/a"]),
        ("part[0-9].bin", ["part7.bin"], ["partx.bin", "part10.bin"]),
        ("part[!0-9].bin", ["partx.bin"], ["part7.bin"]),
        ("a[[]1].txt", ["a[1].txt"], ["a1.txt"]),
        ("**/a/**/b", ["a/b", "x/a/b", "x/a/y/z/b", "a/b/c"], ["b", "a/x"]),
    ],
)
def test_what_is_matched(pattern: str, matched: list[str], others: list[str]) -> None:
    assert is_pattern(pattern)
    parse_spec({"command": ["true"], "artifacts": [pattern]})
    made = Pattern(pattern)
    assert [name for name in matched if not made.matches(name)] == []
    assert [name for name in others if made.matches(name)] == []


@pytest.mark.parametrize("pattern", ["../*", "/etc/*", "*/../../x", "a**", "**.txt", "a[b", "x/a[b/c]", "a\\*", "*\n"])
def test_what_is_refused_at_submit(pattern: str) -> None:
    with pytest.raises(ValidationError):
        parse_spec({"command": ["true"], "artifacts": [pattern]})


@pytest.mark.parametrize("pattern", ["*a" * 100 + "b", "**/" * 150 + "b", "*" * 400 + "[b]"])
def test_no_name_makes_a_pattern_slow(pattern: str) -> None:
    made, began = Pattern(pattern), time.monotonic()
    assert not made.matches("/".join(["a" * 200] * 2))
    assert not made.matches("/".join(["a"] * 200))
    assert time.monotonic() - began < 2


LEAVE = """
import os
for place in ('out/deep', 'logs', '.cache', 'many'):
    os.makedirs(place)
for name in ('out/a.csv', 'out/deep/b.csv', 'out/c.txt', 'logs/1.log', 'logs/2.log', '.cache/x.csv', 'top.csv'):
    open(name, 'w').write(name)
os.symlink('/etc/passwd', 'out/link.csv')
os.symlink('/etc', 'etc.csv')
os.symlink('.', 'out/loop')
os.mkfifo('logs/pipe.log')
"""
WANTED = ["**/*.csv", "logs/*.log", "out/c.tx?", "none/*", "*.none"]
FOUND = {
    name: name.encode() for name in ("out/a.csv", "out/deep/b.csv", "out/c.txt", "logs/1.log", "logs/2.log", "top.csv")
}
SAID = {
    "out/link.csv": "it is a link",
    "etc.csv": "it is a link",
    "logs/pipe.log": "it is no regular file",
    "none/*": "",
    "*.none": "nothing that the run left matches it",
}


def assert_all_that_matches(collection: Collected) -> None:
    assert kept(collection) == FOUND
    said = collection.said()
    assert len(said) == len(SAID)
    for name, why in SAID.items():
        assert any(line.startswith(f"'{name}' is not kept") and why in line for line in said), (name, said)


def test_from_a_process(scratch: Path, tmp_path: Path) -> None:
    collection = Collected(tmp_path, Limits())
    end, output = run_and_collect(ProcessExecutor(), collection, LEAVE, artifacts=WANTED)
    assert end.code == 0, output
    assert_all_that_matches(collection)


def test_from_a_container(docker_executor: DockerExecutor, tmp_path: Path) -> None:
    collection = Collected(tmp_path, Limits())
    end, output = run_and_collect(docker_executor, collection, LEAVE, artifacts=WANTED)
    assert end.code == 0, output
    assert_all_that_matches(collection)


def test_the_caps_hold_for_what_a_pattern_matches(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "place").mkdir()
    for number in range(8):
        (tmp_path / "tree" / f"{number}.bin").write_bytes(b"0123456789")
    (tmp_path / "tree" / "big.bin").write_bytes(b"x" * 11)
    collection = Collected(tmp_path / "place", Limits(file_bytes=10, run_bytes=45, files=3))
    collect_from_tree(tmp_path / "tree", ["*.bin"], collection)
    assert list(kept(collection)) == ["0.bin", "1.bin", "2.bin"]
    assert sum("keeps 3 files already" in line for line in collection.said()) == 5
    assert any("'big.bin'" in line and "above the 10" in line for line in collection.said())


def test_a_tree_without_end_is_not_looked_at_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "MOST_ENTRIES", 50)
    (tmp_path / "place").mkdir()
    deep = tmp_path / "tree"
    deep.mkdir()
    for _ in range(100):
        deep /= "d"
        deep.mkdir()
    for number in range(100):
        (tmp_path / "tree" / f"{number}").mkdir()
    collection = Collected(tmp_path / "place", Limits())
    collect_from_tree(tmp_path / "tree", ["**/*.csv"], collection)
    assert kept(collection) == {}
    assert any("too many files" in line for line in collection.said())


def test_a_directory_swapped_for_a_link_is_not_entered(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "x.csv").write_text("of somebody else")
    (tmp_path / "tree").mkdir()
    (tmp_path / "place").mkdir()
    (tmp_path / "tree" / "out").symlink_to(tmp_path / "secret")
    os.link(tmp_path / "secret" / "x.csv", tmp_path / "tree" / "hard.csv")
    collection = Collected(tmp_path / "place", Limits())
    collect_from_tree(tmp_path / "tree", ["out/*.csv", "**/*.csv", "out*"], collection)
    assert kept(collection) == {}


@pytest.mark.parametrize("name", ["../x.csv", "work/../../x.csv", "/etc/x.csv", "work//x.csv", "work/./x.csv"])
def test_a_stream_with_names_that_lead_outside_gives_nothing(tmp_path: Path, name: str) -> None:
    collection = Collected(tmp_path, Limits())
    members = packed((f"work/{name}", tarfile.REGTYPE, b"x"), ("work/good.csv", tarfile.REGTYPE, b"good"))
    take_archive(members, None, collection, lambda _: True)
    assert kept(collection) == {"good.csv": b"good"}
    assert Pattern("**/*.csv").matches("good.csv")
    assert {path.parent for path in tmp_path.rglob("*")} <= {tmp_path}
