"""Writes one row per execution. Nothing in the table forbids a second row for a due time: the product must."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from controlplane.core.loops import Progress
from controlplane.core.sql import execute, one
from leadership.election import LOOPS

TABLE = """
CREATE TABLE IF NOT EXISTS counted (
    loop text, fire_at timestamptz, term bigint, at timestamptz DEFAULT clock_timestamp(), pid int)
"""
WRITE = """
INSERT INTO counted (loop, fire_at, term, pid)
SELECT loop, fire_at, term, %(pid)s FROM leadership_fire WHERE loop = %(loop)s AND state = 'undone'
"""


def count() -> Progress:
    return Progress({"rows": execute(WRITE, {"loop": "count", "pid": os.getpid()})})


def naive() -> Progress:
    """The trap: the task asks whether the process beside it leads. Most clusters stand beside one that does not."""
    lease = one("SELECT holder_name FROM leadership_lease WHERE role = %(role)s", {"role": LOOPS})
    if lease is None or lease["holder_name"] != os.environ["COUNT_NODE"]:
        return Progress()
    return Progress({"rows": execute(WRITE, {"loop": "naive", "pid": os.getpid()})})


def count_and_stop() -> Progress:
    """Writes, tells that it did, and is stopped by the kernel inside its transaction."""
    progress = count()
    Path(os.environ["COUNT_MARK"]).write_text("inside")
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0)
    return progress
