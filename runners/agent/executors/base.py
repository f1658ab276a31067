"""What an executor does: run one assignment in isolation, and prove that nothing of it is left."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from runners.agent.artifacts import Collected
    from runners.agent.assignment import Assignment
    from runners.agent.executors.slots import SlotKeeper

LogSink = Callable[[bytes], None]
"""Takes output bytes in order, from one thread at a time; never blocks for long, never raises."""

Progress = Callable[[str], None]
"""Hears what a long preparation is doing; called again and again while it goes on."""

MayStart = Callable[[], None]
"""The last question before anything is executed; raises `ExecutorError` to forbid it."""


def always() -> None:
    """Allows every start: nothing is fenced."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How the execution ended, and why if not by itself."""

    code: int | None
    reason: str = ""
    """'' = by itself; else 'oom', 'timeout', 'cancelled', 'disk', 'image_unavailable', 'executor_error', 'lost',
    'fenced', 'no_slot', 'adopted' (it goes on, under another driver)."""
    detail: str = ""


class ExecutorError(Exception):
    """The execution could not be made or looked after. The message says what, why and what to do."""

    reason = "executor_error"
    temporary = False
    """Whether the same may succeed later by itself: at the start of an agent that is waited for."""


class ImageUnavailable(ExecutorError):
    """The image is neither here nor to be had."""

    reason = "image_unavailable"


class NotAdoptable(ExecutorError):
    """Nothing is left of it that could be waited for or collected. Says nothing about the run: it is given back."""

    reason = "lost"


@dataclass(frozen=True, slots=True)
class Made:
    """An execution that some driver made, as its labels tell."""

    id: str
    run: int
    attempt: int
    adoptable: bool
    """Whether it runs, or has ended and its end and output are kept. What was only made is nobody's to start."""


class Execution(Protocol):
    """One execution under way. Used by one thread, except `stop`, which any thread may call, repeatedly."""

    def wait(self, deadline: float | None) -> Exit:
        """Block until it ended, was stopped, or `deadline` (seconds on `runners.agent.clock`) passed: then it is
        stopped with reason 'timeout'. Output has been delivered to the sink when this returns."""

    def stop(self, reason: str) -> None:
        """SIGTERM, the specification's grace, SIGKILL. Returns at once; `wait` then returns with that reason."""

    def collect(self, collection: Collected) -> None:
        """Take what the specification wants kept; after `wait`, before `remove`. What cannot be had is noted."""

    def remove(self) -> None:
        """Remove everything and confirm it gone. Raises `ExecutorError` if that cannot be confirmed; repeatable."""

    def let_go(self) -> None:
        """Another driver looks after it now: nothing of it is stopped or removed. Returns at once; `wait` then returns
        with reason 'adopted', and `remove` only closes what is this process's own."""


class Executor(Protocol):
    """Makes executions. One object per process, used by many threads."""

    name: str
    slots: SlotKeeper
    """Who is asked for a place before an execution is made."""

    @property
    def endpoint(self) -> str:
        """Where else its executions can be reached: the daemon's address; '' when there is none."""

    def prepared(self, assignment: Assignment) -> bool:
        """Whether nothing stands before its start, as far as is known without asking anybody."""

    def prepare(self, assignment: Assignment, progress: Progress) -> None:
        """Get what takes long, such as the image. Before the start is asked for, so that the run's time does not pass
        meanwhile; makes nothing of the run itself. Raises `ExecutorError`."""

    def start(
        self, assignment: Assignment, sink: LogSink, labels: Mapping[str, str], may_start: MayStart = always
    ) -> Execution:
        """Create and start. Only called after the control plane accepted the start. Raises `ExecutorError`.

        `may_start` is asked when what is made can be found by its labels, and before any of it is executed.
        """

    def look(self, labels: Mapping[str, str]) -> list[Made]:
        """What earlier processes with all these labels made and what is still there, in whatever state."""

    def adopt(self, assignment: Assignment, sink: LogSink, labels: Mapping[str, str]) -> Execution:
        """Look after what a dead driver started for this attempt, under these labels. Never starts anything.

        The sink is given all its output since its creation. Raises `NotAdoptable` when nothing is there any more.
        """

    def sweep(self, labels: Mapping[str, str], spare: Collection[str] = ()) -> int:
        """Stop and remove what an earlier, dead process with all these labels left, but for the ids in `spare`;
        returns how many there were."""
