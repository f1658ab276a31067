"""The driver with the real executors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from runners.agent.assignment import Ending, RunKey, Verdict
from runners.agent.driver import Driver
from runners.agent.executors.process import ProcessExecutor
from tests.runners.agent.conftest import LABELS, assignment, eventually
from tests.runners.agent.stub import StubControl

if TYPE_CHECKING:
    from runners.agent.executors.base import Executor
    from runners.agent.executors.docker import DockerExecutor

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("scratch")]


@pytest.fixture(params=["docker", "process"])
def executor(request: pytest.FixtureRequest) -> Executor:
    if request.param == "process":
        return ProcessExecutor()
    made: DockerExecutor = request.getfixturevalue("docker_executor")
    return made


def test_many_kinds_of_end_at_once(executor: Executor) -> None:
    commands = {
        1: "print('fine')",
        2: "raise SystemExit(7)",
        3: "x = bytearray(1 << 30)",
        4: "while True: pass",
        5: "import time; time.sleep(600)",
        6: "print('x' * (20 << 20))",
        7: "import os; print(os.environ['KEY'])",
    }
    limits: dict[str, Any] = {"resources": {"memory_mib": 96}, "timeout_seconds": 30}
    control = StubControl(
        [
            assignment(
                ["python", "-c", code],
                run=run,
                secrets_given={"KEY": "swordfish"},
                **(limits | ({"timeout_seconds": 2} if run == 4 else {})),
            )
            for run, code in commands.items()
        ]
    )
    driver = Driver(control, executor, slots=4, heartbeat_seconds=0.5, labels=LABELS)
    driver.start()
    eventually(lambda: RunKey(5, 1) in driver.held, seconds=60)
    control.verdicts[RunKey(5, 1)] = Verdict.CANCEL
    eventually(lambda: len(control.results) == len(commands), seconds=90)
    assert driver.drain(10)
    ends = {key.run: (r.ending, r.reason, r.exit_code) for key, r in control.results.items()}
    assert ends[1] == (Ending.SUCCEEDED, "", 0)
    assert ends[2] == (Ending.FAILED, "", 7)
    assert ends[3][0] is Ending.FAILED
    assert ends[4][:2] == (Ending.TIMED_OUT, "timeout")
    assert ends[5][:2] == (Ending.CANCELLED, "cancelled")
    assert ends[6] == (Ending.SUCCEEDED, "", 0)
    assert control.logs[RunKey(1, 1)].endswith(b"fine\n")
    assert control.logs[RunKey(6, 1)].endswith(b"[wharfinger: output cut at 16777216 bytes]\n")
    assert control.logs[RunKey(7, 1)].endswith(b"[masked]\n")
    assert executor.sweep(LABELS) == 0
