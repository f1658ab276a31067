"""Two loops that only count: one gated at the enqueue as it must be, one that asks in its body, as it must not."""

from __future__ import annotations

import os

from controlplane.core.loops import Gate, Loop

SECONDS = float(os.environ.get("COUNT_SECONDS", "1"))
NAIVE = (Loop("naive", Gate.LEADER, lambda: SECONDS, "a test", ("tests.leadership.counting.steps.naive",)),)

LOOPS = (
    Loop("count", Gate.LEADER, lambda: SECONDS, "a test", ("tests.leadership.counting.steps.count",)),
    *(NAIVE if os.environ.get("COUNT_NAIVE") else ()),
)
