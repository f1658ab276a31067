"""Runs an assignment in a container of its own."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from runners.agent.clock import now
from runners.agent.executors import container_config as config
from runners.agent.executors import scratch
from runners.agent.executors.base import (
    Execution,
    ExecutorError,
    ImageUnavailable,
    LogSink,
    Made,
    MayStart,
    Progress,
    always,
)
from runners.agent.executors.docker_adapter import DockerAdapter, NotFound
from runners.agent.executors.docker_adopting import adopt, look
from runners.agent.executors.docker_execution import DockerExecution
from runners.agent.executors.docker_sweep import remove_all
from runners.agent.executors.late_creates import LateCreates
from runners.agent.executors.slots import UNRESTRICTED, WAIT_SECONDS, Place, SlotKeeper, wait_for_place
from runners.agent.registry import advice, login_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from runners.agent.assignment import Assignment

log = logging.getLogger(__name__)

IMAGE_SEEN_SECONDS = 60.0
"""How long an image that was here is taken to be here still, without asking the daemon before each start."""


class DockerExecutor:
    """Makes containers on one daemon.

    `image_aliases` names the image to use where the asked one is not present: for machines that reach no registry.
    Its use is logged and written into the run's own log. `slots` is asked for a place before anything is made: this is
    the one function by which containers of executions come into being (rule P2). A driver reserves before it asks for
    the start; who reserved nothing waits in `start`, for `place_seconds` at most.
    """

    name = "docker"

    def __init__(
        self,
        adapter: DockerAdapter | None = None,
        image_aliases: Mapping[str, str] | None = None,
        slots: SlotKeeper = UNRESTRICTED,
        place_seconds: float = WAIT_SECONDS,
    ) -> None:
        self.adapter = adapter or DockerAdapter()
        self.daemon = self.adapter.identity()
        self._aliases = dict(image_aliases or {})
        self._images: dict[str, float] = {}
        self.slots = slots
        self._place_seconds = place_seconds
        self._late = LateCreates(self.adapter)

    @property
    def endpoint(self) -> str:
        """See `Executor.endpoint`."""
        return self.adapter.endpoint

    def prepared(self, assignment: Assignment) -> bool:
        """See `Executor.prepared`: its image was here a short while ago. If it has gone since, the start gets it."""
        seen = self._images.get(assignment.spec.image)
        return assignment.spec.pull != "always" and seen is not None and now() - seen < IMAGE_SEEN_SECONDS

    def prepare(self, assignment: Assignment, progress: Progress) -> None:
        """See `Executor.prepare`. An image that another stands in for is not fetched."""
        image = assignment.spec.image
        if image not in self._aliases and (assignment.spec.pull == "always" or self.adapter.image_id(image) is None):
            self._pull(assignment, progress)
        fresh = now() - IMAGE_SEEN_SECONDS
        self._images = {name: at for name, at in self._images.items() if at > fresh} | {image: now()}

    def start(
        self, assignment: Assignment, sink: LogSink, labels: Mapping[str, str], may_start: MayStart = always
    ) -> Execution:
        """Create, verify, start. Once a create may have reached the daemon this returns an execution, whatever
        happens then: only its `remove` can tell that nothing is left."""
        place, labels = self._enter(assignment, labels, may_start)
        try:
            name = config.container_name(assignment, labels)
            labels = config.all_labels(assignment, labels)
            execution = DockerExecution(self.adapter, assignment, sink, name, labels[config.LABEL_TOKEN], place)
        except BaseException:
            # Out of descriptors, say. Not dropped, its place would be renewed for as long as this process lives.
            place.drop()
            raise
        try:
            execution.files = self._place_files(assignment, name)
            self._create(execution, labels, may_start)
        except ExecutorError:
            execution.discard()
            raise
        except BaseException:
            # What it made, if anything, is not known here: the caller sweeps it, the keeper's pass frees its place.
            place.drop()
            raise
        execution.begin(may_start)
        return execution

    def _enter(
        self, assignment: Assignment, labels: Mapping[str, str], may_start: MayStart
    ) -> tuple[Place, Mapping[str, str]]:
        """The place that the labels name; whoever reserved none waits for one here."""
        place = self.slots.enter(labels)
        if place is None:
            run, attempt = assignment.run, assignment.attempt
            labels = {**labels, **wait_for_place(self.slots, run, attempt, may_start, self._place_seconds)}
            place = self.slots.enter(labels)
        if place is None:
            raise ExecutorError("the place just reserved is not known any more; this is a defect, report it")
        return place, labels

    def look(self, labels: Mapping[str, str]) -> list[Made]:
        """See `Executor.look`."""
        return look(self.adapter, labels)

    def adopt(self, assignment: Assignment, sink: LogSink, labels: Mapping[str, str]) -> Execution:
        """See `Executor.adopt`. `labels` name the incarnation that made it."""
        return adopt(self.adapter, assignment, sink, labels, self.slots)

    def sweep(self, labels: Mapping[str, str], spare: Collection[str] = ()) -> int:
        """Remove every container with these labels, in any state, and confirm each."""
        return remove_all(self.adapter, labels, spare)

    def _place_files(self, assignment: Assignment, name: str) -> Path | None:
        if not assignment.spec.files:
            return None
        directory = scratch.base_directory() / name
        scratch.remove_tree(directory)
        directory.mkdir()
        directory.chmod(0o755)
        scratch.place_files(directory, assignment.spec.files)
        return directory

    def _create(self, execution: DockerExecution, labels: Mapping[str, str], may_start: MayStart) -> None:
        assignment = execution.assignment
        image = assignment.spec.image
        try:
            self._create_from(execution, image, labels)
        except NotFound:
            image = self._image_instead(assignment, execution.sink)
            # A pull may take minutes: what was allowed before it may be cancelled or late by now (rule P13).
            may_start()
            # The daemon made nothing: the one refusal after which creating again is not a second create.
            self._create_from(execution, image, labels)

    def _create_from(self, execution: DockerExecution, image: str, labels: Mapping[str, str]) -> None:
        asked = config.container_config(
            execution.assignment, image, labels, execution.files, with_init=self.daemon.has_init
        )
        execution.create(asked)
        if execution.container is None:
            self._late.watch(labels[config.LABEL_TOKEN])

    def _image_instead(self, assignment: Assignment, sink: LogSink) -> str:
        image = assignment.spec.image
        alias = self._aliases.get(image)
        if alias is not None:
            log.warning("image %s is not present; using %s as configured", image, alias)
            sink(config.alias_note(image, alias))
            return alias
        self._pull(assignment, None)
        return image

    def _pull(self, assignment: Assignment, progress: Progress | None) -> None:
        spec = assignment.spec
        if spec.pull == "never":
            raise ImageUnavailable(
                f"image {spec.image} is not present, and the run says never to pull it: bring it to the daemon "
                "(docker load), or let `pull` be missing"
            )
        login = login_of(spec, assignment.registry)
        if progress is not None:
            progress(f"pulling {spec.image}")
        try:
            self.adapter.pull(spec.image, progress=progress, login=login)
        except ExecutorError as error:
            why = "is to be pulled at every start" if spec.pull == "always" else "is not present"
            raise ImageUnavailable(
                f"image {spec.image} {why} and cannot be pulled: {error}{advice(spec, str(error))}"
            ) from error
