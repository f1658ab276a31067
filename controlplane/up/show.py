"""What `up` says while it works: progress bars on a terminal, JSON lines otherwise.

Always on standard error, so that standard output holds the summary alone.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class Show(Protocol):
    """Takes events as they come."""

    def event(self, name: str, **fields: Any) -> None:
        """One thing that happened."""

    def close(self) -> None:
        """Nothing more comes."""


def make_show() -> Show:
    """For whoever reads standard error."""
    return TerminalShow() if sys.stderr.isatty() else LineShow()


class LineShow:
    """One JSON object a line."""

    def event(self, name: str, **fields: Any) -> None:
        """Print it at once: whoever reads a pipe follows as it happens."""
        print(json.dumps({"event": name, **fields}, default=str), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing is open."""


class TerminalShow:
    """A bar for each tenant; everything else scrolls above them."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[running]} running"),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._bars: dict[str, TaskID] = {}

    def event(self, name: str, **fields: Any) -> None:
        """Progress moves a bar; the rest is printed above the bars."""
        if name == "progress":
            self._advance(fields)
            return
        text = fields.pop("text", "")
        if not text:
            text = "  ".join(f"{key} {value}" for key, value in fields.items())
        # Not wrapped by us, nor read as markup: addresses, tokens and commands are copied from here.
        self._console.print(f"[bold]{name.replace('_', ' ')}[/bold]  {escape(text)}", highlight=False, soft_wrap=True)

    def _advance(self, fields: dict[str, Any]) -> None:
        if not self._bars:
            self._progress.start()
        tenant = fields["tenant"]
        if tenant not in self._bars:
            self._bars[tenant] = self._progress.add_task(tenant, total=fields["total"], running=0)
        self._progress.update(self._bars[tenant], completed=fields["ended"], running=fields["running"])

    def close(self) -> None:
        """Leave the bars as they stand and give the cursor back."""
        self._progress.stop()
