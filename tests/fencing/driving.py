"""A driver in a process of its own, its control plane in memory: `driving.py <who keeps the fence> <seconds> <mark>`.

`watchdog` is what is built; `itself` is the variant that the fence is there against: the driver as its own watchdog.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from runners.agent.driver import Driver
from runners.agent.executors.process import ProcessExecutor
from runners.agent.fence import Fence
from runners.agent.watchdog import Task, Watchdog, make_sweep
from runners.agent.watchdog_process import WatchdogProcess
from tests.runners.agent.conftest import assignment
from tests.runners.agent.stub import StubControl


class Itself:
    """The watchdog as a thread of the driver."""

    def __init__(self, task: Task) -> None:
        told, self._tell = os.pipe()
        self._answers, answer = os.pipe()
        watchdog = Watchdog(make_sweep(task), told, answer)
        threading.Thread(target=watchdog.run, daemon=True).start()

    def tell(self, deadline: float | None) -> None:
        os.write(self._tell, f"1 {'' if deadline is None else deadline}\n".encode())

    def confirm(self, until: float) -> bool:
        return True

    def close(self) -> None:
        os.write(self._tell, b"bye\n")


def main(keeper: str, seconds: float, mark: str) -> None:
    labels = {"wharfinger.driver": mark}
    task = Task("process", labels)
    kept: Itself | WatchdogProcess
    if keeper == "itself":
        kept = Itself(task)
    else:
        kept = WatchdogProcess(task, lambda name, **fields: print(name, fields, flush=True))
        kept.start()
    control = StubControl([assignment(["python", "-c", "import time; time.sleep(600)", mark])])
    driver = Driver(
        control, ProcessExecutor(), slots=1, labels=labels, heartbeat_seconds=0.2, fence=Fence(kept, seconds)
    )
    driver.start()
    time.sleep(600)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3])
