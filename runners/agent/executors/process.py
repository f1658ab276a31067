"""Runs an assignment as a process of this machine: for development, tests and trusted code.

No image, no own file system: `image` is ignored, `python` means this interpreter, and the working directory is a
private temporary one instead of the specification's. `facts` says what holds on this machine and what does not.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from admission.spec import MIB
from runners.agent.environment import run_environment
from runners.agent.executors import cgroups, scratch
from runners.agent.executors.base import (
    Execution,
    ExecutorError,
    LogSink,
    Made,
    MayStart,
    NotAdoptable,
    Progress,
    always,
)
from runners.agent.executors.process_execution import ProcessExecution
from runners.agent.executors.process_sweep import remove_abandoned
from runners.agent.executors.processes import identity
from runners.agent.executors.slots import UNRESTRICTED

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from runners.agent.assignment import Assignment
    from runners.agent.executors.slots import SlotKeeper

# As a module, for a script is compiled anew at each start.
SHIM = "import sys; sys.path.append(sys.argv.pop()); import shim; shim.main()"
SHIM_DIRECTORY = Path(__file__).parent
BACKSTOP_SECONDS = 10.0
# Users above the ranges that distributions hand out: each run its own, so that runs cannot touch each other.
FIRST_RUN_UID = 1_900_000_000
_SHARED = 65_534


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What this executor can promise here."""

    cgroup: Literal["v1", "v2", "none"]
    root: bool
    user: Literal["own", "nobody", "same"]
    """Whose rights a run has: a user of its own, nobody's, or the driver's."""
    python: str
    memory_bounds: Literal["tree", "process"]
    """'tree': all processes of a run together; 'process': each by itself."""
    fork_bomb_contained: bool
    escape_contained: bool
    """A process that leaves its session is killed with the rest."""
    survives_shim_kill: bool
    """Whether the run could kill its own watcher (same user, no cgroup)."""
    network_isolated: bool
    file_system_isolated: bool = False
    total_disk_bounded: bool = False


class ProcessExecutor:
    """Makes processes, each under a shim. Used by many threads."""

    name = "process"

    def __init__(self, *, use_cgroup: bool = True) -> None:
        # No container, so nothing that a limit of containers could count: with one, this executor is refused (P3).
        self.slots: SlotKeeper = UNRESTRICTED
        self._cgroup = cgroups.detect() if use_cgroup else None
        self._root = os.geteuid() == 0
        self._user = _run_user() if self._root else "same"
        self._python = _interpreter(other_user=self._root)
        self._driver = identity(os.getpid())

    @property
    def endpoint(self) -> str:
        """See `Executor.endpoint`."""
        return ""

    def facts(self) -> ProcessFacts:
        """What holds here."""
        bounded = self._cgroup is not None
        return ProcessFacts(
            cgroup=self._cgroup.version if self._cgroup else "none",
            root=self._root,
            user=self._user,
            python=self._python,
            memory_bounds="tree" if bounded else "process",
            # Without a cgroup the count is the user's: exact for a user of its own, rough for a shared one.
            fork_bomb_contained=True,
            escape_contained=True,
            survives_shim_kill=bounded or self._root,
            network_isolated=self._root,
        )

    def prepared(self, assignment: Assignment) -> bool:
        """See `Executor.prepared`: there is nothing to fetch."""
        return True

    def prepare(self, assignment: Assignment, progress: Progress) -> None:
        """See `Executor.prepare`."""

    def start(
        self, assignment: Assignment, sink: LogSink, labels: Mapping[str, str], may_start: MayStart = always
    ) -> Execution:
        """See `Executor.start`. Returns before the command runs; its failure to start is the exit."""
        name = f"run-{assignment.run}-{assignment.epoch}-{uuid.uuid4().hex[:12]}"
        base = scratch.base_directory()
        directory, record = base / name, base / f"{name}.json"
        plan = self._plan(assignment, directory, record)
        group = self._make_group(name, assignment)
        paths = asdict(group)
        plan |= {"cgroups": paths.pop("directories"), **paths}
        try:
            directory.mkdir(mode=0o700)
            scratch.place_files(directory, assignment.spec.files)
            record.write_text(json.dumps({"labels": dict(labels), "driver": self._driver, "plan": _paths(plan)}))
            # Asked with the record in place: a sweep between the answer and the start finds it and removes the
            # directory, without which the command does not start.
            may_start()
            return ProcessExecution(functools.partial(self._spawn, record), plan, assignment.spec, sink, record)
        except (OSError, ExecutorError) as error:
            cgroups.remove(group.directories)
            scratch.remove_tree(directory)
            record.unlink(missing_ok=True)
            if isinstance(error, ExecutorError):
                raise
            raise ExecutorError(f"run {assignment.run} cannot be started as a process: {error}") from error

    def look(self, labels: Mapping[str, str]) -> list[Made]:
        """See `Executor.look`: the shim ends what it runs when its driver is gone, so nothing could be adopted."""
        return []

    def adopt(self, assignment: Assignment, sink: LogSink, labels: Mapping[str, str]) -> Execution:
        """See `Executor.adopt`."""
        raise NotAdoptable(f"run {assignment.run} was executed as a process; it ended with its driver")

    def sweep(self, labels: Mapping[str, str], spare: Collection[str] = ()) -> int:
        """Clear up after drivers that are gone, where even the shim was killed."""
        return remove_abandoned(labels)

    def _make_group(self, name: str, assignment: Assignment) -> cgroups.Group:
        if self._cgroup is None:
            return cgroups.Group()
        try:
            return self._cgroup.make(f"wharfinger-{name}", assignment.spec.resources)
        except OSError as error:
            raise ExecutorError(f"the cgroup of run {assignment.run} cannot be made: {error}") from error

    def _plan(self, assignment: Assignment, directory: Path, record: Path) -> dict[str, Any]:
        spec = assignment.spec
        return {
            "command": self._command(spec.command),
            "environment": self._environment(assignment, directory),
            "directory": str(directory),
            "record": str(record),
            "first_uid": FIRST_RUN_UID if self._user == "own" else None,
            "uid": _SHARED if self._user == "nobody" else None,
            "isolate_network": self._root and spec.network == "none",
            "limits": self._limits(assignment),
            "keep": bool(spec.artifacts),
            "backstop_seconds": spec.timeout_seconds + spec.stop_grace_seconds + BACKSTOP_SECONDS,
        }

    def _command(self, command: list[str]) -> list[str]:
        if command[0] not in {"python", "python3"}:
            return list(command)
        if not self._python:
            raise ExecutorError(
                f"{sys.executable} cannot be reached by the unprivileged user that runs get; install a python3 in "
                "/usr/bin, or run the driver as an ordinary user"
            )
        return [self._python, *command[1:]]

    def _environment(self, assignment: Assignment, directory: Path) -> dict[str, str]:
        base = {"PATH": os.defpath, "LANG": "C.UTF-8", "TMPDIR": str(directory)}
        return {**base, **run_environment(assignment, home=str(directory))}

    def _limits(self, assignment: Assignment) -> dict[str, int]:
        wanted = assignment.spec.resources
        limits = {
            "RLIMIT_CORE": 0,
            "RLIMIT_FSIZE": wanted.disk_mib * MIB,
            "RLIMIT_CPU": int(assignment.spec.timeout_seconds * max(1.0, wanted.cpu)) + 5,
        }
        if self._cgroup is None:
            limits["RLIMIT_AS"] = wanted.memory_mib * MIB
            limits["RLIMIT_NPROC"] = wanted.pids + (0 if self._user == "own" else _processes_of(self._run_uid()))
        return limits

    def _run_uid(self) -> int:
        return _SHARED if self._root else os.getuid()

    @staticmethod
    def _spawn(record: Path, status: int, output: int) -> subprocess.Popen[bytes]:
        # The record is on the command line for whoever has to find this very shim: see `process_sweep`.
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-E", "-c", SHIM, str(status), str(record), str(SHIM_DIRECTORY)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=(status,),
            start_new_session=True,
            env={},
        )


def _paths(plan: dict[str, Any]) -> dict[str, Any]:
    """What a sweep needs. Never the environment: it holds secrets."""
    return {key: plan[key] for key in ("directory", "procs", "pids_max", "kill", "cgroups")}


def _run_user() -> Literal["own", "nobody"]:
    """A user of its own needs that user to exist in this user namespace."""
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = (int(word) for word in line.split())
        if first <= FIRST_RUN_UID and first + count > FIRST_RUN_UID + (1 << 22):
            return "own"
    return "nobody"


@functools.cache
def _interpreter(*, other_user: bool) -> str:
    """This interpreter, or where another user may not reach it (a home of root's) the system's; '' for none."""
    if not other_user:
        return sys.executable
    places = [sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or ""]
    places += [f"/usr/bin/python3.{minor}" for minor in range(20, 8, -1)]
    return next((place for place in places if place and _anybody_may_run(Path(place))), "")


def _anybody_may_run(path: Path) -> bool:
    try:
        reached = [path, path.resolve(strict=True)]
    except OSError:
        return False
    return all(place.stat().st_mode & 0o001 for file in reached for place in (file, *file.parents))


def _processes_of(uid: int) -> int:
    """RLIMIT_NPROC counts threads of the user, not processes of the run."""
    count = 0
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            if entry.stat().st_uid == uid:
                count += len(list(Path(f"/proc/{entry.name}/task").iterdir()))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return count
