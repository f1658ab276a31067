"""Runs that end when they are told to: before, during or after an outage. Each knows beforehand what it writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.work import LABELS, Work

CODE = """
import hashlib, os, signal, sys, time
key, size, code, folder, gates = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5].split()
told = []
signal.signal(signal.SIGUSR1, lambda *_: told.append(True))
attempt = os.environ["WHARFINGER_ATTEMPT"]
if folder:
    with open(folder + "/journal", "ab", 0) as file: file.write(f"{key} {attempt} {time.time()}\\n".encode())
text = hashlib.shake_256(f"{key}.{attempt}".encode()).hexdigest(size // 2)
with open("kept", "w") as file: file.write(text[:1000])
for part, gate in enumerate([*gates, "", "", "", ""][:4]):
    sys.stdout.write(text[part * size // 4 : (part + 1) * size // 4] + "\\n"); sys.stdout.flush()
    while gate and not told and not os.path.exists(folder + "/" + gate): time.sleep(0.1)
sys.exit(code)
"""
DURING, AFTER = "gate-during", "gate-after"
SMALL, BIG = 40_000, 2_000_000


@dataclass(frozen=True, slots=True)
class Errand(Work):
    """Goes on at each of its gates when that is opened: a file beside the journal, or a signal in a container."""

    gates: tuple[str, ...] = ()
    agent: str = ""

    def spec(self, journal: Path, image: str) -> dict[str, Any]:
        where = "" if self.on_docker else str(journal.parent)
        arguments = [self.key, str(self.size), str(self.exit_code), where, " ".join(self.gates)]
        return {
            "command": ["python", "-I", "-S", "-c", CODE, *arguments],
            "backend": "docker" if self.on_docker else "process",
            "labels": {**LABELS, **({"agent": self.agent} if self.agent else {})},
            "resources": {"memory_mib": 64, "cpu": 0.2},
            "retry": {"max_attempts": 3, "backoff_seconds": 0},
            "artifacts": ["kept"],
            **({"image": image} if self.on_docker else {}),
        }


def errands(mark: str, *, docker: bool) -> tuple[list[Errand], list[Errand]]:
    """What runs when the server goes (four for each agent, as many as it has slots), and what waits for a quota."""

    def errand(name: str, tenant: int, **more: Any) -> Errand:
        return Errand(**{"key": f"{mark}.{name}", "on_docker": False, "seconds": 0, "exit_code": 0, "size": SMALL}
                      | {"tenant": tenant} | more)  # fmt: skip

    running = [
        errand(f"{agent}-{number}", tenant, agent=agent, gates=gates, size=size, exit_code=code)
        for tenant, agent in enumerate(("agent0", "agent1"))
        for number, (gates, size, code) in enumerate(
            [((DURING,), SMALL, 0), ((DURING,), SMALL, 3), ((DURING,), BIG, 0), ((DURING, AFTER), BIG, 0)]
        )
    ]
    if docker:
        running.append(errand("docker", 0, on_docker=True, gates=(DURING,), agent="agent2"))
    return running, [errand(f"waiting-{number}", number % 2) for number in range(6)]
