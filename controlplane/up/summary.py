"""The summary for people; the JSON form is the data itself."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table


def print_summary(summary: dict[str, Any]) -> None:
    """A table of tenants and the verdicts below it, on standard output."""
    console = Console()
    table = Table(
        "tenant", "quota", "expected", "seen", "highest (history)", "highest (observed)", "containers at once"
    )
    for slug, tenant in summary["tenants"].items():
        table.add_row(
            slug,
            "none" if tenant["quota"] is None else str(tenant["quota"]),
            _counts(tenant["expected"]),
            _counts(tenant["seen"]),
            str(tenant["highest_history"]),
            str(tenant["highest_observed"]),
            "-" if tenant["highest_containers"] is None else str(tenant["highest_containers"]),
        )
    console.print(table)
    console.print(f"conserved: {summary['conserved']}   violations: {len(summary['violations'])}")
    for text in summary["violations"] + summary["unexpected"]:
        console.print(f"  {text}")
    restarts = {name: count for name, count in summary["restarts"].items() if count}
    console.print(f"restarted children: {restarts or 'none'}   wall time: {summary['wall_seconds']:.1f} s")
    console.print("as expected" if summary["as_expected"] else "NOT as expected", style="bold")


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {ending}" for ending, number in sorted(counts.items(), key=lambda item: -item[1]))
