"""Control groups for the process executor: whether this process may make them, and making one.

Both layouts: v2 (one tree; controllers must be delegated to a directory without processes of its own) and v1 (one tree
per controller). A probe makes a group and looks at it: permission bits alone do not tell what a container's runtime or
a hybrid mount allows.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from admission.spec import MIB, Resources

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path("/sys/fs/cgroup")
CPU_PERIOD = 100_000
_V1_NEEDED = {"pids": "pids.max", "memory": "memory.limit_in_bytes"}
_V2_NEEDED = ("pids.max", "memory.max", "cgroup.procs")


@dataclass(frozen=True, slots=True)
class Group:
    """One group, as the shim needs it: paths only."""

    join: list[str] = field(default_factory=list)
    procs: str = ""
    pids_max: str = ""
    kill: str = ""
    events: str = ""
    directories: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where groups can be made here. `parents` has one entry for v2, one per controller for v1."""

    version: Literal["v1", "v2"]
    parents: dict[str, Path]

    def make(self, name: str, limits: Resources) -> Group:
        """Make a group with these limits. Raises `OSError`; then nothing of it is left."""
        directories = [parent / name for parent in self.parents.values()]
        try:
            for directory in directories:
                directory.mkdir(exist_ok=True)
            return self._limit(name, limits)
        except OSError:
            remove(map(str, directories))
            raise

    def _limit(self, name: str, limits: Resources) -> Group:
        places = {controller: parent / name for controller, parent in self.parents.items()}
        return _limit_v2(places["unified"], limits) if self.version == "v2" else _limit_v1(places, limits)


def remove(directories: Iterable[str]) -> None:
    """Remove empty groups; one that is gone is fine."""
    for directory in directories:
        try:
            Path(directory).rmdir()
        except FileNotFoundError:
            continue


def detect(root: Path = ROOT) -> Hierarchy | None:
    """The hierarchy this process may use, tried out; None when there is none with memory and pids."""
    own = _own_groups()
    for candidate in (*_v2_candidates(root, own), *_v1_candidates(root, own)):
        if _works(candidate):
            return candidate
    return None


def _own_groups() -> dict[str, str]:
    """Controller (or '' for v2) -> path of this process's own group."""
    found: dict[str, str] = {}
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except FileNotFoundError:
        return found
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = path
    return found


def _v2_candidates(root: Path, own: dict[str, str]) -> list[Hierarchy]:
    """Our own group, its parent (a delegated one: there siblings may be made), then the top as root."""
    if not (root / "cgroup.controllers").exists():
        return []
    mine = root / own.get("", "/").lstrip("/")
    places = [mine, mine.parent if mine != root else mine, root]
    usable = [p for p in dict.fromkeys(places) if _delegates(p)]
    return [Hierarchy("v2", {"unified": place}) for place in usable]


def _delegates(place: Path) -> bool:
    try:
        return {"pids", "memory"} <= set((place / "cgroup.subtree_control").read_text().split())
    except OSError:
        return False


def _v1_candidates(root: Path, own: dict[str, str]) -> list[Hierarchy]:
    parents = {c: root / c / own.get(c, "/").lstrip("/") for c in ("pids", "memory", "cpu")}
    if not all(parents[c].is_dir() for c in _V1_NEEDED):
        return []
    return [Hierarchy("v1", {c: path for c, path in parents.items() if path.is_dir()})]


def _works(hierarchy: Hierarchy) -> bool:
    name = f"wharfinger-probe-{os.getpid()}"
    try:
        group = hierarchy.make(name, Resources())
    except OSError:
        return False
    remove(group.directories)
    return True


def _limit_v2(place: Path, limits: Resources) -> Group:
    (place / "pids.max").write_text(str(limits.pids))
    (place / "memory.max").write_text(str(limits.memory_mib * MIB))
    _if_there(place / "memory.swap.max", "0")
    _if_there(place / "cpu.max", f"{_quota(limits)} {CPU_PERIOD}")
    missing = [name for name in _V2_NEEDED if not os.access(place / name, os.W_OK)]
    if missing:
        raise PermissionError(f"{place}: cannot write {missing}")
    return Group(
        join=[str(place / "cgroup.procs")],
        procs=str(place / "cgroup.procs"),
        pids_max=str(place / "pids.max"),
        kill=str(place / "cgroup.kill") if (place / "cgroup.kill").exists() else "",
        events=str(place / "memory.events"),
        directories=[str(place)],
    )


def _limit_v1(places: dict[str, Path], limits: Resources) -> Group:
    memory, pids = places["memory"], places["pids"]
    (pids / "pids.max").write_text(str(limits.pids))
    (memory / "memory.limit_in_bytes").write_text(str(limits.memory_mib * MIB))
    # Absent where swap is not accounted; then only the swap's size bounds what a run can page out.
    _if_there(memory / "memory.memsw.limit_in_bytes", str(limits.memory_mib * MIB))
    if "cpu" in places:
        _if_there(places["cpu"] / "cpu.cfs_period_us", str(CPU_PERIOD))
        _if_there(places["cpu"] / "cpu.cfs_quota_us", str(_quota(limits)))
    return Group(
        join=[str(place / "cgroup.procs") for place in places.values()],
        procs=str(pids / "cgroup.procs"),
        pids_max=str(pids / "pids.max"),
        events=str(memory / "memory.oom_control"),
        directories=[str(place) for place in places.values()],
    )


def _quota(limits: Resources) -> int:
    return max(1000, int(limits.cpu * CPU_PERIOD))


def _if_there(path: Path, text: str) -> None:
    if path.exists():
        path.write_text(text)
