"""Holders as processes of their own, to be killed or stopped by a test.

`python -m tests.races.holder keep REPLICA TENANT HOLDER`: takes two runs and a permit of another system and renews
all of it until it is killed; tells of the first renewal that found something gone.
`python -m tests.races.holder pause REPLICA`: stops itself in the middle of an admission, with the tenant's counter
locked; continued, it tells what became of it.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import django


def say(*words: object) -> None:
    print(*words, flush=True)  # read by the test


def keep(replica: int, tenant: int, holder: str) -> None:
    from admission.engine import Envelope, admit  # noqa: PLC0415 - models need the settings first
    from admission.services.permits import claim_permit, renew_permits  # noqa: PLC0415
    from admission.services.runs import renew_runs, start_runs  # noqa: PLC0415
    from controlplane.core.conf import conf  # noqa: PLC0415
    from recovery.models import Replica  # noqa: PLC0415
    from recovery.services.replicas import replica_driver  # noqa: PLC0415

    driver = replica_driver(Replica.objects.get(pk=replica))
    held = [(a.run, a.epoch) for a in admit(driver, Envelope(2))]
    start_runs(driver, held)
    claim_permit(holder, tenant_id=tenant)
    say("holds", *(run for run, _ in held))
    while True:
        lost = [run for (run, _), verdict in renew_runs(driver, held).items() if verdict != "ok"]
        if not renew_permits([holder], tenant_id=tenant):
            lost.append(0)
        if lost:
            say("lost", *lost)
            return
        time.sleep(conf().permit_renew_seconds / 2)


def pause(replica: int) -> None:
    from django.db import DatabaseError, InterfaceError  # noqa: PLC0415

    from admission import engine  # noqa: PLC0415
    from recovery.models import Replica  # noqa: PLC0415
    from recovery.services.replicas import replica_driver  # noqa: PLC0415

    write = engine._parameters

    def stop_first(*given: object) -> dict[str, object]:
        say("inside")
        os.kill(os.getpid(), signal.SIGSTOP)
        return write(*given)  # type: ignore[arg-type]

    engine._parameters = stop_first  # type: ignore[assignment]
    driver = replica_driver(Replica.objects.get(pk=replica))
    try:
        say("admitted", *(a.run for a in engine.admit(driver, engine.Envelope(1))))
    except (DatabaseError, InterfaceError) as error:
        say("undone", type(error).__name__)


def main() -> None:
    django.setup()
    if sys.argv[1] == "keep":
        keep(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        pause(int(sys.argv[2]))


if __name__ == "__main__":
    main()
