"""Runs an assignment in a container of its own."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from runners.agent.executors import container_config as config
from runners.agent.executors import scratch
from runners.agent.executors.base import (
    Execution,
    ExecutorError,
    ImageUnavailable,
    LogSink,
    Made,
    MayStart,
    always,
)
from runners.agent.executors.docker_adapter import DockerAdapter, NotFound
from runners.agent.executors.docker_adopting import BeforeAdopt, adopt, look
from runners.agent.executors.docker_execution import BeforeStart, DockerExecution
from runners.agent.executors.docker_sweep import remove_all

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from runners.agent.assignment import Assignment

log = logging.getLogger(__name__)


class DockerExecutor:
    """Makes containers on one daemon.

    `image_aliases` names the image to use where the asked one is not present: for machines that reach no registry.
    Its use is logged and written into the run's own log. `before_start` is where a physical slot is registered (P7),
    `before_adopt` where one is taken over with its container (R10).
    """

    name = "docker"

    def __init__(
        self,
        adapter: DockerAdapter | None = None,
        image_aliases: Mapping[str, str] | None = None,
        before_start: BeforeStart | None = None,
        before_adopt: BeforeAdopt | None = None,
    ) -> None:
        self.adapter = adapter or DockerAdapter()
        self.daemon = self.adapter.identity()
        self._aliases = dict(image_aliases or {})
        self._before_start = before_start
        self._before_adopt = before_adopt

    @property
    def endpoint(self) -> str:
        """See `Executor.endpoint`."""
        return self.adapter.endpoint

    def start(
        self, assignment: Assignment, sink: LogSink, labels: Mapping[str, str], may_start: MayStart = always
    ) -> Execution:
        """Create, verify, start. Once a create may have reached the daemon this returns an execution, whatever
        happens then: only its `remove` can tell that nothing is left."""
        name = config.container_name(assignment, labels)
        labels = config.all_labels(assignment, labels)
        execution = DockerExecution(self.adapter, assignment, sink, name, labels[config.LABEL_TOKEN])
        try:
            execution.files = self._place_files(assignment, name)
            self._create(execution, labels)
        except ExecutorError:
            execution.discard()
            raise
        execution.begin(self._before_start, may_start)
        return execution

    def look(self, labels: Mapping[str, str]) -> list[Made]:
        """See `Executor.look`."""
        return look(self.adapter, labels)

    def adopt(self, assignment: Assignment, sink: LogSink, labels: Mapping[str, str]) -> Execution:
        """See `Executor.adopt`. `labels` name the incarnation that made it."""
        return adopt(self.adapter, assignment, sink, labels, self._before_adopt)

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

    def _create(self, execution: DockerExecution, labels: Mapping[str, str]) -> None:
        assignment = execution.assignment
        image = assignment.spec.image
        try:
            self._create_from(execution, image, labels)
        except NotFound:
            # The daemon made nothing: the one refusal after which creating again is not a second create.
            self._create_from(execution, self._image_instead(image, execution.sink), labels)

    def _create_from(self, execution: DockerExecution, image: str, labels: Mapping[str, str]) -> None:
        asked = config.container_config(
            execution.assignment, image, labels, execution.files, with_init=self.daemon.has_init
        )
        execution.create(asked)

    def _image_instead(self, image: str, sink: LogSink) -> str:
        alias = self._aliases.get(image)
        if alias is not None:
            log.warning("image %s is not present; using %s as configured", image, alias)
            sink(config.alias_note(image, alias))
            return alias
        try:
            self.adapter.pull(image)
        except ExecutorError as error:
            raise ImageUnavailable(f"image {image} is not present and cannot be pulled: {error}") from error
        return image
