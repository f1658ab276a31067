"""`make bench`: prints the table as markdown. `--quick` for a look, `--only claims,scripts` for some parts.

`containers` is measured only when it is named: it needs Docker.
"""

from __future__ import annotations

import argparse
import os
import sys

from benchmarks.server import database, describe

PARTS = ("claims", "admissions", "picking", "roundtrips", "scripts")


def main() -> int:
    """Measure, print; exit code 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: figures of little worth")
    parser.add_argument(
        "--only",
        default="claims,admissions,picking,roundtrips,scripts,idle,http,endtoend",
        help="which parts, with commas",
    )
    chosen = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    os.environ.setdefault("SECRET_KEY", "of the benchmarks only")
    with database() as url:
        os.environ["DATABASE_URL"] = url
        return _measure(url, chosen.only.split(","), quick=chosen.quick)


def _measure(url: str, parts: list[str], *, quick: bool) -> int:
    import django  # noqa: PLC0415 - reads the environment that main() has set

    django.setup()
    from django.core.management import call_command  # noqa: PLC0415
    from django.db import connection  # noqa: PLC0415

    from benchmarks import admissions, claims, containers, endtoend, http, idle, picking, scripts  # noqa: PLC0415
    from benchmarks.report import table  # noqa: PLC0415

    call_command("migrate", verbosity=0)
    environment = describe(url)
    rows = []
    if "claims" in parts:
        rows += claims.measure(url, rounds=3 if quick else 7, seconds=1 if quick else 3)
    if "admissions" in parts:
        rows += admissions.measure(rounds=3 if quick else 5)
    if "picking" in parts:
        rows += picking.measure(url, rounds=3 if quick else 7, runs=50_000 if quick else 1_000_000)
    if "roundtrips" in parts:
        rows += picking.measure_round_trips(url, rounds=6 if quick else 40, queued=20_000 if quick else 200_000)
    if "idle" in parts:
        rows += idle.measure(
            url, runners=200 if quick else 1000, seconds=10 if quick else 65, submits=40 if quick else 300
        )
    if "endtoend" in parts:
        rows += endtoend.measure(
            url, rounds=1 if quick else 3, jobs=1000 if quick else 5000, submits=40 if quick else 200
        )
    if "http" in parts:
        rows += http.measure(url, rounds=3 if quick else 9, seconds=1 if quick else 3)
    if "containers" in parts:
        rows += containers.measure(pairs=10 if quick else 100)
    if "scripts" in parts:
        rows += scripts.measure(rounds=3 if quick else 9, seconds=1 if quick else 2)
    connection.close()
    print(f"{environment}\n\n{table(rows)}")
    return int(any(row.met is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
