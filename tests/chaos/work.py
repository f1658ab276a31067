"""Runs that leave evidence: each execution notes itself in a journal outside, and writes output known beforehand."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CODE = """
import hashlib, os, sys, time
key, size, seconds, code, journal = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
attempt = os.environ["WHARFINGER_ATTEMPT"]
if journal:
    with open(journal, "ab", 0) as file: file.write(f"{key} {attempt} {time.time()}\\n".encode())
text = hashlib.shake_256(f"{key}.{attempt}".encode()).hexdigest(size // 2)
for part in range(4):
    sys.stdout.write(text[part * size // 4 : (part + 1) * size // 4] + "\\n"); sys.stdout.flush()
    time.sleep(seconds / 4)
sys.exit(code)
"""
LABELS = {"trust.site": "chaos"}
"""Only the agents of this test may have them."""
SMALLEST, LARGEST, LONG = 200, 16_000, 600_000
"""Sizes of the output; a long one is of more than one append."""
ONE_IN_LONG, ONE_IN_FAILED = 20, 25


@dataclass(frozen=True, slots=True)
class Work:
    """One run, as it is planned."""

    key: str
    tenant: int
    on_docker: bool
    size: int
    seconds: float
    exit_code: int

    def spec(self, journal: Path, image: str) -> dict[str, Any]:
        where = "" if self.on_docker else str(journal)
        arguments = [self.key, str(self.size), f"{self.seconds:.3f}", str(self.exit_code), where]
        return {
            "command": ["python", "-I", "-S", "-c", CODE, *arguments],
            "backend": "docker" if self.on_docker else "process",
            "labels": LABELS,
            "resources": {"memory_mib": 64, "cpu": 0.2},
            "retry": {"max_attempts": 100, "backoff_seconds": 0},
            **({"image": image} if self.on_docker else {}),
        }

    def output(self, attempt: int) -> bytes:
        """What this attempt writes when nothing stops it: no two attempts write the same."""
        text = hashlib.shake_256(f"{self.key}.{attempt}".encode()).hexdigest(self.size // 2)
        parts = [text[part * self.size // 4 : (part + 1) * self.size // 4] for part in range(4)]
        return "".join(f"{part}\n" for part in parts).encode()


def planned(mark: str, quotas: tuple[int, ...], runs: int, on_docker: int, seconds: tuple[float, float]) -> list[Work]:
    """All runs, spread over the tenants in proportion to their quotas."""
    dice = random.Random(mark)  # noqa: S311 - sizes and lengths
    tenants = [tenant for tenant, quota in enumerate(quotas) for _ in range(quota)]
    return [
        Work(
            key=f"{mark}.{number}",
            tenant=tenants[number % len(tenants)],
            on_docker=number < on_docker,
            size=LONG if number % ONE_IN_LONG == 0 else 2 * dice.randint(SMALLEST // 2, LARGEST // 2),
            seconds=dice.uniform(*seconds),
            exit_code=3 if number % ONE_IN_FAILED == 1 else 0,
        )
        for number in range(runs)
    ]
