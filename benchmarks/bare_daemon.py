"""What the bare Docker daemon needs for the demo's 528 containers, at the demo's parallelism.

`python -m benchmarks.bare_daemon`. The same images, commands, files and limits, by the SDK alone: create, attach,
start, read to the end, inspect, remove. No database, no quota, no ledger. Each tenant's containers run in a pool as
wide as the demo let them be: its quota, or the slots that are left.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import docker

from controlplane.demo.humaneval import DemoRun, demo_runs
from runners.agent.executors.images import ensure_python_image

POOLS = {"azure": 2, "coral": 4, "amber": 4}


def _run(client: docker.APIClient, image: str, run: DemoRun, place: Path) -> int:
    place.mkdir()
    source = place / "solution.py"
    source.write_text(run.spec["files"]["solution.py"]["text"])
    source.chmod(0o644)
    resources = run.spec["resources"]
    host = client.create_host_config(
        mem_limit=f"{resources['memory_mib']}m",
        memswap_limit=f"{resources['memory_mib']}m",
        nano_cpus=int(resources["cpu"] * 1e9),
        pids_limit=resources["pids"],
        network_mode="none",
        read_only=True,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        tmpfs={"/work": "size=16m,mode=1777", "/tmp": "size=16m,mode=1777"},  # noqa: S108 - inside the container
        binds={str(source): {"bind": "/work/solution.py", "mode": "ro"}},
    )
    made = client.create_container(
        image, run.spec["command"], working_dir="/work", user="65534:65534", host_config=host
    )
    output = client.attach(made["Id"], stream=True)
    client.start(made["Id"])
    killer = threading.Timer(run.spec["timeout_seconds"], client.kill, (made["Id"],))
    killer.start()
    for _ in output:
        pass
    code: int = client.wait(made["Id"])["StatusCode"]
    killer.cancel()
    client.inspect_container(made["Id"])
    client.remove_container(made["Id"], force=True, v=True)
    return code


def _pool(width: int, image: str, base: Path) -> None:
    local = threading.local()

    def one(item: tuple[int, DemoRun]) -> None:
        if not hasattr(local, "client"):
            local.client = docker.APIClient(base_url="unix:///var/run/docker.sock", timeout=300)
        _run(local.client, image, item[1], base / str(item[0]))

    base.mkdir()
    with ThreadPoolExecutor(width) as pool:
        list(pool.map(one, enumerate(demo_runs())))


def measure() -> dict[str, Any]:
    """Run all pools at once; seconds."""
    image = ensure_python_image()
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        begun = time.monotonic()
        threads = [
            threading.Thread(target=_pool, args=(width, image, Path(name) / slug)) for slug, width in POOLS.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"containers": 3 * len(demo_runs()), "pools": POOLS, "wall_seconds": round(time.monotonic() - begun, 2)}


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(json.dumps(measure()))
