"""The gate: what has to be so before this process lets anything begin under one incarnation of the server (P4, P12).

Bound to the `run_id` read on the connection that is about to be used. In this order, each step on that connection:
the configuration is ours; the ledger is the one known on the daemon; then the containers are listed, and after them
the holders read. The order matters: a process that puts a new ledger lists afterwards, and one that compares the
ledger after its create looks afterwards too, so one of the two sees the other.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from admission.physical import parsing
from admission.physical.entitlement import Entitlement
from admission.physical.errors import NotVerified, PhysicalError, Refused, Superseded
from admission.physical.keys import Keys
from admission.physical.outside import GenerationMark, LedgerMark, OutsideRecord, Verify
from admission.physical.redis_adapter import Connection, read_durability
from admission.physical.results import Config, Snapshot
from admission.physical.scripts import Script

log = logging.getLogger("admission.physical")

ROUNDS = 4
"""Steps that change something (initialise, put a mark) before a look is complete; more: others keep changing it."""

RETRY_SECONDS = 1.0
"""After a failed look, the next one of this process; every waiting thread would list the containers else."""

BUSY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Identity:
    """What this process believes in; every script compares it."""

    run_id: str
    protocol: str
    daemon: str
    ledger: str

    @property
    def arguments(self) -> tuple[str, str, str]:
        """ARGV[1..3]."""
        return self.protocol, self.daemon, self.ledger


COUNTED = "counted"
"""No ledger is about to begin: every holder counts."""


class _View:
    """Holders for a look at the containers; those of a ledger that is about to be replaced do not count.

    Only while it is still there: another process may have begun the new one since, and what that one counts runs.
    """

    def __init__(self, read: Callable[[Connection], Snapshot], connection: Connection, replaced: str | None) -> None:
        self._read = read
        self._connection = connection
        self._replaced = replaced

    def read(self) -> Snapshot:
        snapshot = self._read(self._connection)
        ledger = snapshot.config.ledger if snapshot.config else None
        return replace(snapshot, holders=()) if ledger == self._replaced else snapshot


class Gate:
    """One for each process and instance."""

    def __init__(
        self,
        entitlement: Entitlement,
        protocol: str,
        scripts: dict[str, Script],
        outside: OutsideRecord,
        verify: Verify,
    ) -> None:
        self._entitlement = entitlement
        self._protocol = protocol
        self._scripts = scripts
        self._keys = Keys.of(entitlement.instance).all
        self._outside = outside
        self._verify = verify
        self._lock = threading.Lock()
        self._passed: Identity | None = None
        self._last: Identity | None = None
        self._failed_at = float("-inf")
        self._failure: PhysicalError | None = None
        self.warnings: tuple[str, ...] = ()

    def read(self, connection: Connection) -> Snapshot:
        """Everything, on this connection."""
        return parsing.snapshot(connection.script(self._scripts["read"], self._keys, ()), connection.run_id)

    def identity(self) -> Identity:
        """For what is allowed before the gate: what this process last believed in, or what the daemon tells."""
        if self._last is None:
            mark = self._outside.ledger()
            self._last = Identity("", self._protocol, self._outside.daemon_id(), mark.ledger if mark else "")
        return self._last

    def forget(self) -> None:
        """A script said that the dataset is another one: look again before the next."""
        self._passed = None
        self._last = None

    def ensure(self, connection: Connection) -> Identity:
        """The identity to act under on this connection; looks first if its incarnation is not the one that passed."""
        if (passed := self._passed_on(connection)) is not None:
            return passed
        if not self._lock.acquire(timeout=BUSY_SECONDS):
            raise NotVerified("the containers of this instance are being looked through by another thread; wait")
        try:
            return self._passed_on(connection) or self._open(connection)
        finally:
            self._lock.release()

    def recheck(self, connection: Connection) -> None:
        """What can change under a running server without a script noticing: settings, the record on the daemon."""
        identity = self.ensure(connection)
        self._durable(connection)
        config, known = self.read(connection).config, self._outside.ledger()
        ledgers = {identity.ledger, config.ledger if config else "", known.ledger if known else ""}
        if len(ledgers) > 1 or self._outside.daemon_id() != identity.daemon:
            self.forget()
            self.ensure(connection)

    def _passed_on(self, connection: Connection) -> Identity | None:
        passed = self._passed
        return passed if passed is not None and passed.run_id == connection.run_id else None

    def _open(self, connection: Connection) -> Identity:
        if self._failure is not None and time.monotonic() - self._failed_at < RETRY_SECONDS:
            raise type(self._failure)(*self._failure.args)
        self._passed, self._failure = None, None
        try:
            passed = self._passed = self._last = self._look(connection)
        except PhysicalError as failure:
            self._failure, self._failed_at = failure, time.monotonic()
            raise
        log.info("physical slots verified under server incarnation %s", connection.run_id)
        return passed

    def _look(self, connection: Connection) -> Identity:
        self._durable(connection)
        for _ in range(ROUNDS):
            daemon = self._outside.daemon_id()
            config = self.read(connection).config
            self._may_act(config, daemon)
            if config is None:
                self._begin_ledger(connection, daemon, None)
            elif self._same_ledger(connection, config):
                self._same_generation(config)
                self._no_container_without_token(connection)
                self._end_lockdown(connection, config)
                return Identity(connection.run_id, self._protocol, daemon, config.ledger)
        raise NotVerified("the stored configuration kept changing while it was compared; this is tried again")

    def _durable(self, connection: Connection) -> None:
        problems = read_durability(connection)
        self.warnings = tuple(problems)
        if not problems:
            return
        text = "; ".join(problems)
        if self._entitlement.hosted:
            raise Refused(f"Redis may lose slots, which a hosted instance must not risk: {text}.")
        log.warning("REDIS MAY LOSE PHYSICAL SLOTS, and the limit with them: %s", text)

    def _may_act(self, config: Config | None, daemon: str) -> None:
        """Nothing is looked at, still less removed, by a process whose configuration is not in force (P4, P11)."""
        mine = self._entitlement
        highest = self._outside.generation()
        if highest is not None:
            _compare(mine, highest.generation, highest.limit)
        if config is None:
            return
        if config.protocol != self._protocol:
            raise Refused(
                f"the slots are kept by protocol {config.protocol}, this process speaks {self._protocol}: run one "
                "version of Wharfinger in every process of the instance"
            )
        if config.daemon != daemon:
            raise Refused(
                f"the slots count containers of Docker daemon {config.daemon}, this process uses {daemon}: point "
                "DOCKER_HOST at the former, or give the processes of the new daemon another CONTROLPLANE_INSTANCE_ID"
            )
        _compare(mine, config.generation, config.limit)

    def _same_ledger(self, connection: Connection, config: Config) -> bool:
        mine = LedgerMark(config.ledger_number, config.ledger)
        known = self._outside.ledger()
        if known == mine:
            return True
        if known is None or known.number < mine.number:
            # Whoever initialised died before putting the mark, or the marks were deleted from the daemon.
            self._outside.put_ledger(mine)
        else:
            self._begin_ledger(connection, config.daemon, config.ledger)
        return False

    def _begin_ledger(self, connection: Connection, daemon: str, replaced: str | None) -> None:
        """Missing or foreign configuration: drain, then begin anew. The next round compares what came of it."""
        known = self._outside.ledger()
        cause = _cause(known, replaced)
        if cause:
            log.critical("%s: nothing is admitted until no container of this instance is left", cause)
        self._no_container_without_token(connection, replaced, cause)
        self.put_generation()
        known = self._outside.ledger()
        mark = LedgerMark(known.number + 1 if known else 1, secrets.token_hex(16))
        mine = self._entitlement
        arguments = (self._protocol, daemon, mark.ledger, str(mark.number), str(mine.generation), str(mine.limit))
        answer = connection.script(self._scripts["initialise"], self._keys, (*arguments, replaced or "-"))
        if answer[0] == "initialised":
            log.warning("a new ledger of physical slots begins: number %s", mark.number)
            self._outside.put_ledger(mark)

    def _same_generation(self, config: Config) -> None:
        """The marks may have been deleted from the daemon: put this one again."""
        if self._entitlement.generation == config.generation:
            self.put_generation()

    def put_generation(self) -> None:
        """Before Redis learns of it: if Redis is restored later, the superseded generation is still known to be so."""
        mine = self._entitlement
        put = self._outside.put_generation(GenerationMark(mine.generation, mine.limit))
        _compare(mine, put.generation, put.limit)

    def _no_container_without_token(
        self, connection: Connection, replaced: str | None = COUNTED, cause: str = ""
    ) -> None:
        found = self._verify(_View(self.read, connection, replaced))
        if found.removed:
            log.warning("containers without a slot were removed: %s", ", ".join(found.removed))
        if not found.clean:
            raise NotVerified(
                (f"{cause}: " if cause else "")
                + "nothing is admitted while containers of this instance without a slot are left, or could not be "
                f"looked for ({'; '.join(found.problems) or 'no reason was given'}). They are being removed, and it "
                "goes on by itself; one that cannot be: docker rm -f it, found by the label "
                f"wharfinger.instance={self._entitlement.instance}"
            )

    def _end_lockdown(self, connection: Connection, config: Config) -> None:
        if not config.lockdown_id:
            return
        arguments = (self._protocol, config.daemon, config.ledger, config.lockdown_id)
        answer = connection.script(self._scripts["lockdown_clear"], self._keys, arguments)
        log.warning("lockdown (%s) after a clean pass: %s", config.lockdown_reason, answer[0])


def _cause(known: LedgerMark | None, replaced: str | None) -> str:
    """Why a ledger has to begin although the daemon knows one; '' where it knows none."""
    if known is None:
        return ""
    if replaced is None:
        return f"Redis has lost the slots of this instance (its Docker daemon knows ledger {known.number}, Redis none)"
    return (
        f"Redis holds another dataset (ledger {replaced}) than the one known on the Docker daemon ({known.ledger}); "
        "if REDIS_URL is a mistake, correct it at once"
    )


def _compare(mine: Entitlement, generation: int, limit: int) -> None:
    if mine.generation < generation:
        raise Superseded(
            f"generation {mine.generation} of this process was superseded by {generation}: restart it with the "
            "CONTROLPLANE_RUN_GENERATION and the limit that are in force"
        )
    if mine.generation == generation and mine.limit != limit:
        raise Refused(
            f"generation {generation} stands for a limit of {limit}, this process has {mine.limit}: raise "
            "CONTROLPLANE_RUN_GENERATION with every change of the limit, in every process of the instance"
        )
