"""One execution of a fire in a process of its own, which a test stops where it likes.

`python -m tests.leadership.sweeper LOOP FIRE_AT TERM`: prints the outcome. With COUNT_MARK the step writes, leaves its
mark and is stopped inside its transaction; with COUNT_STOP_BEFORE the process is stopped before it begins.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import datetime
from pathlib import Path

import django


def main() -> None:
    django.setup()
    from leadership import execution, registry, sql  # noqa: PLC0415 - models need the settings first
    from tests.leadership.counting import steps  # noqa: PLC0415

    if os.environ.get("COUNT_UNPROVED"):
        # The red variant: no proof of the term, and none of the fire's.
        sql.PROVE_TERM = "SELECT %(term)s AS term"
        sql.PROGRESS_FIRE = "SELECT %(fire)s AS id"
    if os.environ.get("COUNT_INSIDE"):
        registry.step = lambda path: steps.count_and_stop  # type: ignore[assignment]
    loop, fire_at, term = sys.argv[1], datetime.fromisoformat(sys.argv[2]), int(sys.argv[3])
    if os.environ.get("COUNT_BEFORE"):
        begin = execution._Sweep.run

        def stop_first(sweep: execution._Sweep) -> execution.Outcome:
            Path(os.environ["COUNT_MARK"]).write_text("before")
            os.kill(os.getpid(), signal.SIGSTOP)
            return begin(sweep)

        execution._Sweep.run = stop_first  # type: ignore[method-assign]
    print(execution.execute_fire(loop, fire_at, term).value)  # read by the test


if __name__ == "__main__":
    main()
