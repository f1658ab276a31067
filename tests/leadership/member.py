"""One process that competes for the lease, as a replica does, and writes down what it believed, and when.

`python -m tests.leadership.member NAME JOURNAL`. Lines of the journal, all times of CLOCK_BOOTTIME, which every
process of the machine shares: {"term", "from", "until"} for a belief that began or was extended, {"term", "ended"} for
one that was ended early, {"term", "acted"} for a moment at which the process would have acted as the leader.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import uuid
from typing import Any

import django

NAME, JOURNAL = sys.argv[1:3]
ACT_SECONDS = 0.02


class Journal:
    """Appends whole lines, unbuffered: a killed process has said all that it did."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def write(self, **line: Any) -> None:
        os.write(self._file, json.dumps({"name": NAME, "pid": os.getpid(), **line}).encode() + b"\n")


def fork_and_try(elector: Any, journal: Journal) -> None:
    """On SIGUSR1: what a forked child makes of its parent's lease."""
    if pid := os.fork():
        os.waitpid(pid, 0)
        return
    elector.tick()
    elector.resign()
    journal.write(child_term=elector.term())
    os._exit(0)


def main() -> None:
    django.setup()
    from leadership.belief import now  # noqa: PLC0415 - models need the settings first
    from recovery.replica.leading import Leading  # noqa: PLC0415
    from runners.agent.signalled import Signalled  # noqa: PLC0415

    journal = Journal(JOURNAL)
    last: dict[str, int] = {}

    def observe(belief: Any) -> None:
        if belief is None:
            journal.write(term=last["term"], ended=now())
        else:
            last["term"] = belief.term
            journal.write(term=belief.term, **{"from": now(), "until": belief.until})

    stop = Signalled()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    forks: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: forks.append(number))
    leading = Leading(str(uuid.uuid4()), NAME, observer=observe)
    leading.start()
    journal.write(started=now(), wall=time.time())
    while not stop.wait(ACT_SECONDS):
        # The clock before and after: the process may be stopped between the question and the note.
        before, term, after = now(), leading.elector.term(), now()
        if term is not None and after - before < ACT_SECONDS:
            journal.write(term=term, acted=before)
        if forks:
            forks.clear()
            fork_and_try(leading.elector, journal)
    leading.stop()
    journal.write(stopped=now())


if __name__ == "__main__":
    main()
