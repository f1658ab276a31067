"""The loop of reconciliation: a failing tick is followed by the next, and a waiting one holds up nobody (rule R5)."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
import time
from unittest.mock import patch

import pytest

from recovery.replica import ticking
from recovery.replica.ticking import JITTER_MILLISECONDS, Ticking, cryptographic_jitter

PATIENCE = 20.0


@pytest.mark.rule("R5")
def test_a_failing_tick_schedules_the_next_with_fresh_jitter() -> None:
    drawn: list[float] = []
    enough = threading.Event()

    def jitter() -> float:
        drawn.append(0.001)
        return drawn[-1]

    def tick() -> None:
        if len(drawn) >= 4:
            enough.set()
        raise RuntimeError("this tick fails")

    loop = Ticking("failing", tick, 0.01, jitter=jitter)
    loop.start()
    assert enough.wait(PATIENCE)
    loop.stop()
    assert len(drawn) >= 4, "drawn anew for each"


@pytest.mark.rule("R5")
def test_the_jitter_comes_from_the_operating_system_and_fills_half_a_second() -> None:
    with patch.object(ticking.secrets, "randbelow", return_value=250) as source:
        assert cryptographic_jitter() == 0.25
    source.assert_called_once_with(JITTER_MILLISECONDS + 1)
    found = {cryptographic_jitter() for _ in range(200)}
    assert len(found) > 100
    assert 0 <= min(found) <= max(found) <= 0.5
    assert "import random" not in inspect.getsource(ticking)


@pytest.mark.rule("R5")
def test_a_waiting_tick_never_delays_the_end_of_its_process() -> None:
    code = (
        "import django; django.setup()\n"
        "from recovery.replica.ticking import Ticking\n"
        "Ticking('waiting', lambda: None, 3600).start()\n"
        "print('at the end', flush=True)\n"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "at the end\n"
    assert time.monotonic() - began < 60
