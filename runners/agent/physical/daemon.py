"""What an instance keeps on its Docker daemon: who that is, which ledger counts, which generation was reached.

Records are empty volumes. The daemon makes a volume of a given name once and answers every later request with the one
that is there, labels unchanged: an atomic put-if-absent. They survive Redis, restarts and `docker system prune`.
`docker volume prune` deletes them (with `--all` on engines from 23): a lost nonce is another daemon, and refused.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from admission.physical.outside import GenerationMark, LedgerMark
from runners.agent.executors.base import ExecutorError

if TYPE_CHECKING:
    from runners.agent.executors.docker_adapter import DockerAdapter

# Not the label of execution containers (rule P14): a record is nothing that runs.
LABEL_RECORD: Final = "wharfinger.record"
LABEL_KIND: Final = "wharfinger.record.kind"
LABEL_NUMBER: Final = "wharfinger.record.number"
LABEL_VALUE: Final = "wharfinger.record.value"


class DaemonRecord:
    """Implements `admission.physical.outside.OutsideRecord` for the instance with this hash."""

    def __init__(self, adapter: DockerAdapter, instance: str) -> None:
        self._adapter = adapter
        self._instance = instance

    def daemon_id(self) -> str:
        """See `OutsideRecord`. The engine's own id is copied with a disk image; the nonce is made on the first use."""
        engine = self._adapter.identity().id
        return f"{engine}/{self._put('nonce', 0, secrets.token_hex(16))}"

    def ledger(self) -> LedgerMark | None:
        """See `OutsideRecord`."""
        found = self._highest("ledger")
        return None if found is None else LedgerMark(*found)

    def put_ledger(self, mark: LedgerMark) -> LedgerMark:
        """See `OutsideRecord`."""
        return LedgerMark(mark.number, self._put("ledger", mark.number, mark.ledger))

    def generation(self) -> GenerationMark | None:
        """See `OutsideRecord`."""
        found = self._highest("generation")
        return None if found is None else GenerationMark(found[0], int(found[1]))

    def put_generation(self, mark: GenerationMark) -> GenerationMark:
        """See `OutsideRecord`."""
        return GenerationMark(mark.generation, int(self._put("generation", mark.generation, str(mark.limit))))

    def _put(self, kind: str, number: int, value: str) -> str:
        """The value that stands under this number now."""
        name = f"wharfinger-{self._instance}-{kind}-{number}"
        labels = {**self._labels(kind), LABEL_NUMBER: str(number), LABEL_VALUE: value}
        there = self._adapter.put_volume(name, labels)
        if {**labels, LABEL_VALUE: ""} != {**there, LABEL_VALUE: ""} or LABEL_VALUE not in there:
            raise ExecutorError(
                f"volume {name} is on the Docker daemon, but not as this instance's record of its {kind}; remove it "
                "if it is of no use, or choose another CONTROLPLANE_INSTANCE_ID"
            )
        return there[LABEL_VALUE]

    def _highest(self, kind: str) -> tuple[int, str] | None:
        found = self._adapter.volumes(self._labels(kind))
        return max(((int(each[LABEL_NUMBER]), each[LABEL_VALUE]) for each in found), default=None)

    def _labels(self, kind: str) -> dict[str, str]:
        return {LABEL_RECORD: self._instance, LABEL_KIND: kind}
