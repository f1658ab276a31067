"""What is left of a run that has ended: kept files are collected, put on the disk, and brought to the control plane.

Nothing here may end a run otherwise than it ended, or keep it for ever: what cannot be kept is said in its log.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from runners.agent.artifacts import Collected, Kept
from runners.agent.backoff import Backoff
from runners.agent.clock import now
from runners.agent.control import ArtifactRefused, Control, ControlUnavailable, Superseded
from runners.agent.executors import scratch
from runners.agent.spool import Spool, SpoolError, Waiting

if TYPE_CHECKING:
    from runners.agent.assignment import Result
    from runners.agent.events import OnEvent
    from runners.agent.executors.base import Execution, Exit
    from runners.agent.holds import Hold

PATIENCE_SECONDS = 60.0
# Ends after which the run goes to somebody else: what this attempt left is of no use to anybody.
NOT_KEPT = {"shutdown", "lost", "fenced", "superseded", "adopted"}


class Keeping:
    """Of one driver. Without a spool nothing outlives the process: a replica's holds do not either."""

    def __init__(self, control: Control, on_event: OnEvent, spool: Spool | None = None) -> None:
        self._control = control
        self._on_event = on_event
        self._spool = spool

    def collect(self, hold: Hold, execution: Execution, end: Exit) -> None:
        """Take what the run wants kept, while it can be had. Never raises."""
        if not hold.assignment.spec.artifacts or hold.superseded or end.reason in NOT_KEPT:
            return
        collection: Collected | None = None
        try:
            collection = Collected(self._place(hold), self._control.artifact_limits)
            execution.collect(collection)
        except Exception as error:  # noqa: BLE001 - told with its stack; the run's end stands all the same
            self._tell(hold, "artifacts_failed", error=repr(error), stack=traceback.format_exc())
            hold.logs.note("what should be kept could not be read on this machine")
        if collection is not None:
            hold.kept = collection.kept
            for sentence in collection.said():
                hold.logs.note(sentence)

    def ended(self, hold: Hold, result: Result | None) -> None:
        """On the disk with it before anything is sent. A disk that does not take it must not lose the result."""
        if self._spool is None or hold.superseded:
            return
        offset, output = hold.logs.undelivered()
        waiting = Waiting(
            hold.key, hold.assignment.attempt, hold.assignment.job_token, result, offset, output, tuple(hold.kept)
        )
        try:
            if not self._spool.put(waiting):
                self._tell(hold, "spool_full", bytes=len(output))
        except SpoolError as error:
            self._tell(hold, "spool_failed", error=str(error))

    def upload(self, hold: Hold) -> None:
        """Bring the kept files, before the result: who sees that a run succeeded finds what it kept."""
        for one in hold.kept:
            self._bring(hold, one)

    def _bring(self, hold: Hold, one: Kept) -> None:
        until, backoff, pause = now() + PATIENCE_SECONDS, Backoff(), threading.Event()
        while not hold.superseded:
            try:
                self._control.put_artifact(hold.key, one)
            except ControlUnavailable as error:
                if now() >= until and self._answers(hold):
                    hold.logs.note(f"{one.name!a} could not be stored: {error}")
                    self._tell(hold, "artifact_undelivered", artifact=one.name, error=str(error))
                    return
                pause.wait(backoff.delay())
            except Superseded:
                hold.stop("superseded", superseded=True)
                return
            except ArtifactRefused as error:
                hold.logs.note(f"{one.name!a} is not kept: {error}")
                return
            except Exception as error:  # noqa: BLE001 - told with its stack; the result matters more than its files
                self._tell(hold, "artifact_undelivered", artifact=one.name, error=repr(error))
                hold.logs.note(f"{one.name!a} could not be stored")
                return
            else:
                return

    def _answers(self, hold: Hold) -> bool:
        """Whether the control plane answers other questions: while it is away altogether, nothing is given up."""
        return answers(self._control, hold)

    def forget(self, hold: Hold) -> None:
        """The control plane knows the end, or nobody asks for it any more."""
        if self._spool is not None:
            self._spool.drop(hold.key)
        elif hold.place is not None:
            shutil.rmtree(hold.place, ignore_errors=True)

    def _place(self, hold: Hold) -> Path:
        if self._spool is not None:
            return self._spool.files(hold.key)
        hold.place = Path(tempfile.mkdtemp(prefix="keep-", dir=scratch.base_directory()))
        return hold.place

    def _tell(self, hold: Hold, name: str, **fields: object) -> None:
        told = {key: hold.logs.hide(value) if isinstance(value, str) else value for key, value in fields.items()}
        self._on_event(name, run=hold.key.run, epoch=hold.key.epoch, attempt=hold.assignment.attempt, **told)


def answers(control: Control, hold: Hold) -> bool:
    """Whether the control plane answers at all, asked with a renewal of this hold."""
    try:
        control.heartbeat([hold.key])
    except ControlUnavailable:
        return False
    except Exception:  # noqa: BLE001 - whatever it said, it answered
        return True
    return True
