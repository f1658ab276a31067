"""JSON log lines with what is bound to the current context (request, run, tenant, replica)."""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

_bound: ContextVar[dict[str, Any] | None] = ContextVar("wharfinger_log_fields", default=None)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def bind(**fields: Any) -> None:
    """Add fields to every later line of this context."""
    _bound.set({**(_bound.get() or {}), **fields})


def unbind(*names: str) -> None:
    """Remove fields again."""
    _bound.set({k: v for k, v in (_bound.get() or {}).items() if k not in names})


class JsonFormatter(logging.Formatter):
    """One JSON object a line; `extra=` fields become keys."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; what JSON does not know is written as text rather than lost."""
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **(_bound.get() or {}),
        }
        line.update({k: v for k, v in vars(record).items() if k not in _STANDARD})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
