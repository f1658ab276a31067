"""Submitting the demo batch as its tenants would, over REST, and holding what came of it against what must come."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from admission.models import Tenant
from admission.services.readings import read_drift, read_highest_concurrency
from controlplane.demo.humaneval import PROBLEMS, DemoRun, demo_runs, long_run
from runners.client import Client

POLL_SECONDS = 0.5
OUTAGE_SECONDS = 120.0
TERMINAL = ("succeeded", "failed", "cancelled", "timed_out", "interrupted")

Say = Callable[..., None]


@dataclass(slots=True)
class TenantBatch:
    """One tenant's part."""

    slug: str
    quota: int | None
    client: Client
    runs: list[DemoRun]
    batch: str
    batch_id: int = 0
    last_said: tuple[int, int] = (-1, -1)

    def submit(self) -> None:
        """All at once; the keys make a repeat harmless."""
        items = [{"spec": run.spec, "idempotency_key": f"{self.batch}/{run.name}"} for run in self.runs]
        answer = self.client.submit_batch(self.batch, items)
        self.batch_id = answer["id"]
        refused = [item for item in answer["items"] if item["outcome"] not in ("created", "existed")]
        if refused:
            raise RuntimeError(f"{self.slug}: {len(refused)} runs were refused, the first: {refused[0]}")

    def progress(self) -> dict[str, int]:
        """Counts by state, as the tenant sees them."""
        counts: dict[str, int] = self.client.batch(self.batch_id)["counts"]
        return counts

    def endings(self) -> dict[str, str]:
        """Name to state of every run of the batch."""
        return {run["name"]: run["state"] for run in self.client.runs(batch=self.batch_id)}


class Demo:
    """The batch of all tenants."""

    def __init__(
        self, url: str, tenants: Mapping[str, Mapping[str, Any]], say: Say, *, problems: int = PROBLEMS
    ) -> None:
        self._say = say
        name = f"humaneval-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
        self.batches = [
            TenantBatch(
                slug, facts["quota"], Client(url, facts["token"], patience=OUTAGE_SECONDS), demo_runs(problems), name
            )
            for slug, facts in tenants.items()
        ]

    def submit(self) -> None:
        """Every tenant at the same time."""
        with ThreadPoolExecutor(len(self.batches)) as pool:
            for done in [pool.submit(batch.submit) for batch in self.batches]:
                done.result()

    def submit_long_run(self) -> int:
        """The tour's run, for the tenant without a quota."""
        free = next((b for b in self.batches if b.quota is None), self.batches[0])
        run: int = free.client.submit(long_run())["id"]
        return run

    def wait(self, stop: Callable[[], bool]) -> bool:
        """Until every run ended; False when stopped before."""
        while not stop():
            left = 0
            for batch in self.batches:
                left += self._tell(batch)
            if left == 0:
                return True
            time.sleep(POLL_SECONDS)
        return False

    def _tell(self, batch: TenantBatch) -> int:
        counts = batch.progress()
        total = len(batch.runs)
        ended = sum(counts.get(state, 0) for state in TERMINAL)
        running = counts.get("running", 0) + counts.get("admitted", 0)
        if (ended, running) != batch.last_said:
            batch.last_said = (ended, running)
            self._say("progress", tenant=batch.slug, ended=ended, total=total, running=running)
        return total - ended

    def summary(self, observed: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Everything that `--once` promises to say."""
        unexpected: list[str] = []
        tenants = {batch.slug: self._tenant_summary(batch, observed, unexpected) for batch in self.batches}
        conserved = not read_drift()
        violations = list(observed["violations"])
        for slug, tenant in tenants.items():
            if tenant["quota"] is not None and tenant["highest_history"] > tenant["quota"]:
                violations.append(
                    f"{slug}: {tenant['highest_history']} at once in the history, quota {tenant['quota']}"
                )
        return {
            "as_expected": conserved and not violations and not unexpected,
            "tenants": tenants,
            "runs": sum(len(batch.runs) for batch in self.batches),
            "conserved": conserved,
            "violations": violations,
            "unexpected": unexpected,
            "observer": {
                name: observed[name] for name in ("samples", "container_samples", "longest_gap_seconds", "outages")
            },
            "wall_seconds": round(seconds, 2),
        }

    def _tenant_summary(
        self, batch: TenantBatch, observed: Mapping[str, Any], unexpected: list[str]
    ) -> dict[str, Any]:
        seen = batch.endings()
        expected = {run.name: run.ending for run in batch.runs}
        for name, ending in expected.items():
            if seen.get(name) != ending:
                unexpected.append(f"{batch.slug}: {name} ended {seen.get(name)}, expected {ending}")
        slug = batch.slug
        return {
            "quota": batch.quota,
            "expected": dict(Counter(expected.values())),
            "seen": dict(Counter(seen.values())),
            "highest_history": read_highest_concurrency(Tenant.objects.get(slug=slug).pk),
            "highest_observed": max(observed["permits"].get(slug, 0), observed["holding"].get(slug, 0)),
            "highest_containers": observed["containers"].get(slug) if observed["container_samples"] else None,
        }
