"""A signal is heard at whichever step of its wait the main thread is met by it."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The signal comes at each step of the wait in turn, as often as there are steps: raised by a trace function, so that
# no step is left to chance. The program ends with 0 only if every wait came back.
PROGRAM = """
import signal, sys, threading
from runners.agent.signalled import Signalled

make, module = {make}, {module!r}

def met_at(step):
    asked, left = make(), [step]
    signal.signal(signal.SIGTERM, lambda *_: asked.set())

    def trace(frame, event, argument):
        if module not in frame.f_code.co_filename or event != "line":
            return trace
        left[0] -= 1
        if left[0] == 0:
            signal.raise_signal(signal.SIGTERM)
        return trace

    sys.settrace(trace)
    try:
        for _ in range(3):
            asked.wait(0.001)
    finally:
        sys.settrace(None)
    assert left[0] > 0 or asked.wait(5)
    return left[0] <= 0

step = 1
while met_at(step):
    step += 1
print(step - 1)
"""


def meet(make: str, module: str) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(make=make, module=module)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=False)


@pytest.mark.rule("R14", "Q12")
def test_a_signal_is_heard_at_every_step_of_the_wait() -> None:
    met = meet("Signalled", "signalled.py")
    assert met.returncode == 0, met.stderr
    assert int(met.stdout) > 5


def test_an_event_would_wait_for_itself_when_it_is_set_at_the_wrong_step() -> None:
    """Why there is a class of our own: the same meeting, and the main thread never comes back."""
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-c", PROGRAM.format(make="threading.Event", module="threading.py")],
            capture_output=True,
            timeout=3,
            check=False,
        )
