"""What an agent tells: a line for people on a terminal, JSON lines elsewhere. Never a secret: events carry none."""

from __future__ import annotations

import json
import sys
import threading
from datetime import UTC, datetime


class Telling:
    """An `OnEvent`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._people = sys.stderr.isatty()

    def __call__(self, name: str, /, **fields: object) -> None:
        """Write one line."""
        now = datetime.now(UTC)
        if self._people:
            text = " ".join(f"{key}={value}" for key, value in fields.items() if value not in (None, "", False))
            line = f"{now:%H:%M:%S} {name} {text}"
        else:
            line = json.dumps({"at": now.isoformat(timespec="milliseconds"), "event": name, **fields}, default=str)
        with self._lock:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
