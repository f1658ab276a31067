"""The ledger against a model in plain Python: hypothesis picks the verbs, every invariant is checked after each.

The model knows nothing of SQL: which runs are open, who holds what, what a limit allows. A reaper that the product may
run by itself (a refusal reaps its own limit) is allowed to act at any step, but only on what had lapsed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from django.db import DEFAULT_DB_ALIAS
from django.utils import timezone
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from admission.engine import Envelope, admit
from admission.models import Attempt, Batch, Counter, Permit, Run, Tenant
from admission.services.deleting import delete_tenant
from admission.services.permits import ClaimOutcome, claim_permit, release_permit, renew_permits
from admission.services.quotas import remove_quota, set_quota
from admission.services.reaping import reap_outside_permits, reap_run_permits
from admission.services.runs import OPERATOR, Settlement, cancel_runs, give_back, renew_runs, settle_runs, start_runs
from admission.services.runs import take_away as take
from admission.services.tenants import pause_tenant, resume_tenant
from admission.states import HOLDING
from controlplane.core.audit import SYSTEM
from controlplane.core.errors import Conflict, NotFound
from controlplane.core.models import Hold
from tests import ledger

pytestmark = pytest.mark.django_db(transaction=True)

EXAMPLES = int(os.environ.get("WHARFINGER_STATE_EXAMPLES", "300"))
TENANTS, DRIVERS, HOLDERS, MAX_TRIES = 2, 2, 4, 3
HOUR = timedelta(hours=1)
NUMBER = st.integers(0, 11)
"""Picks one of what there is, by remainder."""


@dataclass(slots=True)
class ModelRun:
    tenant: int
    weight: int
    order: tuple[int, int]
    state: str = "queued"
    epoch: int = 0
    driver: int = 0
    tries: int = 0
    cancelled: bool = False
    lapsed: bool = False
    fenced: bool = False
    """Taken over in this step: its epoch must have grown."""

    @property
    def holding(self) -> bool:
        return self.state in HOLDING


@dataclass(slots=True)
class ModelTenant:
    row: Tenant
    quota: int | None = None
    paused: bool = False
    before: int = 0
    """What was in flight after the step before this one: above the limit it may only fall."""


@dataclass(slots=True)
class ModelPermit:
    tenant: int
    weight: int
    lapsed: bool = False


@dataclass(slots=True)
class Model:
    tenants: list[ModelTenant] = field(default_factory=list)
    runs: dict[int, ModelRun] = field(default_factory=dict)
    permits: dict[str, ModelPermit] = field(default_factory=dict)

    def in_flight(self, tenant: int) -> int:
        """By permits: runs count only where a quota stands."""
        total = sum(p.weight for p in self.permits.values() if p.tenant == tenant)
        if self.tenants[tenant].quota is not None:
            total += sum(r.weight for r in self.runs.values() if r.tenant == tenant and r.holding)
        return total

    def fits(self, tenant: int, weight: int) -> bool:
        limit = self.tenants[tenant].quota
        return limit is None or self.in_flight(tenant) + weight <= limit

    def next_of(self, tenant: int) -> ModelRun | None:
        """Who keeps the place at the head of the line: the first queued run that could ever fit."""
        limit = self.tenants[tenant].quota
        able = [
            r
            for r in self.runs.values()
            if r.tenant == tenant and r.state == "queued" and (limit is None or r.weight <= limit)
        ]
        return min(able, key=lambda r: r.order, default=None)

    def taken(self, run: ModelRun) -> None:
        """What a takeover makes of a run."""
        if run.cancelled:
            run.state = "cancelled"
        elif run.state == "admitted" or run.tries < MAX_TRIES:
            run.state = "queued"
        else:
            run.state = "interrupted"
        run.lapsed, run.fenced = False, True


def empty_ledger() -> None:
    for model in (Permit, Attempt, Run, Batch, Counter, Tenant):
        model._base_manager.all()._raw_delete(DEFAULT_DB_ALIAS)


def ready_to_reap() -> None:
    Hold.objects.update_or_create(
        name="permit_reap", defaults={"sign_at": timezone.now(), "until": timezone.now(), "taken_for": None}
    )


class Ledger(RuleBasedStateMachine):
    """Every verb that a caller of the ledger has."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    @initialize()
    def begin(self) -> None:
        empty_ledger()
        ready_to_reap()
        self.drivers = [ledger.make_driver() for _ in range(DRIVERS)]
        # Begun in the middle of life: most verbs do nothing in an empty ledger.
        self.model.tenants = [ModelTenant(ledger.make_tenant(3), quota=3), ModelTenant(ledger.make_tenant())]
        for tenant in range(TENANTS):
            self._submit(tenant, 3, 1, 0)
        self._admit(0, 3)

    # -- helpers

    def _run(self, number: int, *states: str) -> tuple[int, ModelRun] | None:
        found = [(i, r) for i, r in sorted(self.model.runs.items()) if not states or r.state in states]
        return found[number % len(found)] if found else None

    def _holds_of(self, driver: int, *states: str) -> list[tuple[int, int]]:
        return [(i, r.epoch) for i, r in sorted(self.model.runs.items()) if r.driver == driver and r.state in states]

    def _tenant(self, number: int) -> tuple[int, ModelTenant]:
        return number % TENANTS, self.model.tenants[number % TENANTS]

    def _read_epochs(self) -> dict[int, tuple[str, int]]:
        """States and epochs as they stand; no epoch ever falls."""
        rows = {r: (state, epoch) for r, state, epoch in Run.objects.values_list("id", "state", "epoch")}
        for run, known in self.model.runs.items():
            assert rows[run][1] > known.epoch if known.fenced else rows[run][1] >= known.epoch
            known.epoch, known.fenced = rows[run][1], False
        return rows

    def _absorb_reaps(self) -> None:
        """What the product reaped by itself: only what had lapsed, and a run's permit never without its run."""
        rows = dict(Run.objects.values_list("id", "epoch"))
        for run, known in self.model.runs.items():
            if known.lapsed and rows[run] > known.epoch:
                self.model.taken(known)
        standing = set(Permit.objects.filter(run__isnull=True).values_list("holder", flat=True))
        for holder in [h for h, p in self.model.permits.items() if p.lapsed and h not in standing]:
            del self.model.permits[holder]

    # -- other systems

    @rule(
        number=NUMBER,
        claims=st.lists(st.tuples(st.integers(0, HOLDERS - 1), st.integers(1, 2)), min_size=2, max_size=4),
    )
    def claim(self, number: int, claims: list[tuple[int, int]]) -> None:
        for holder, weight in claims:
            self._claim(number, holder, weight)

    def _claim(self, number: int, holder: int, weight: int) -> None:
        tenant, known = self._tenant(number)
        name = f"ext:{holder}"
        held = self.model.permits.get(name)
        if held is not None and (held.tenant, held.weight) != (tenant, weight):
            with pytest.raises(Conflict):
                claim_permit(name, tenant_id=known.row.pk, weight=weight)
            return
        outcome = claim_permit(name, tenant_id=known.row.pk, weight=weight).outcome
        self._absorb_reaps()
        if name in self.model.permits:
            assert outcome is ClaimOutcome.HELD
        else:
            assert outcome is (ClaimOutcome.GRANTED if self.model.fits(tenant, weight) else ClaimOutcome.REFUSED)
        if outcome is ClaimOutcome.GRANTED:
            self.model.permits[name] = ModelPermit(tenant, weight)

    @rule(holder=st.integers(0, HOLDERS - 1), number=NUMBER)
    def release(self, holder: int, number: int) -> None:
        tenant, known = self._tenant(number)
        name = f"ext:{holder}"
        held = self.model.permits.get(name)
        mine = held is not None and held.tenant == tenant
        assert release_permit(name, tenant_id=known.row.pk) is mine
        assert release_permit(name, tenant_id=known.row.pk) is False
        if mine:
            del self.model.permits[name]

    @rule(number=NUMBER)
    def renew_outside(self, number: int) -> None:
        tenant, known = self._tenant(number)
        mine = {h for h, p in self.model.permits.items() if p.tenant == tenant}
        asked = [f"ext:{n}" for n in range(HOLDERS)]
        assert set(renew_permits(asked, tenant_id=known.row.pk)) == mine
        for holder in mine:
            self.model.permits[holder].lapsed = False

    # -- runs

    @rule(number=NUMBER, count=st.integers(1, 4), weight=st.sampled_from((1, 1, 2)), priority=st.integers(0, 2))
    def submit(self, number: int, count: int, weight: int, priority: int) -> None:
        self._submit(number % TENANTS, count, weight, priority)

    def _submit(self, tenant: int, count: int, weight: int, priority: int) -> None:
        spec = {"weight": weight, "priority": priority, "retry": {"backoff_seconds": 0, "max_attempts": MAX_TRIES}}
        for run in ledger.submit(self.model.tenants[tenant].row, count, **spec):
            self.model.runs[run] = ModelRun(tenant, weight, (-priority, run))

    @rule(driver=st.integers(0, DRIVERS - 1), slots=st.sampled_from((1, 2, 50)))
    def admit(self, driver: int, slots: int) -> None:
        self._admit(driver, slots)

    def _admit(self, driver: int, slots: int) -> None:
        given = admit(self.drivers[driver], Envelope(slots))
        self._absorb_reaps()
        assert len(given) <= slots
        for a in given:
            run = self.model.runs[a.run]
            owner = self.model.tenants[run.tenant]
            assert run.state == "queued"
            assert not owner.paused
            assert self.model.fits(run.tenant, run.weight)
            assert a.epoch > run.epoch
            run.state, run.epoch, run.driver = "admitted", a.epoch, driver
        if len(given) < slots:
            self._nothing_more_fits()

    def _nothing_more_fits(self) -> None:
        for tenant, known in enumerate(self.model.tenants):
            first = self.model.next_of(tenant)
            if first is not None and not known.paused:
                assert not self.model.fits(tenant, first.weight), "a run that fits was left in the queue"

    @rule(driver=st.integers(0, DRIVERS - 1))
    def start(self, driver: int) -> None:
        holds = self._holds_of(driver, "admitted")
        verdicts = start_runs(self.drivers[driver], holds)
        for hold in holds:
            run = self.model.runs[hold[0]]
            assert verdicts[hold] == ("cancel" if run.cancelled else "ok")
            if not run.cancelled:
                run.state, run.tries, run.lapsed = "running", run.tries + 1, False

    @rule(driver=st.integers(0, DRIVERS - 1))
    def renew(self, driver: int) -> None:
        holds = self._holds_of(driver, *HOLDING)
        for hold, verdict in renew_runs(self.drivers[driver], holds).items():
            run = self.model.runs[hold[0]]
            assert verdict == ("cancel" if run.cancelled else "ok")
            run.lapsed = False

    @rule(number=NUMBER, ending=st.sampled_from(("succeeded", "failed", "cancelled")))
    def settle(self, number: int, ending: str) -> None:
        if (found := self._run(number, "running")) is None:
            return
        run, known = found
        stale = (run, known.epoch - 1)
        driver = self.drivers[known.driver]
        assert settle_runs(driver, [Settlement(*stale, ending)])[0][stale] == "superseded"
        hold = (run, known.epoch)
        if ending == "cancelled" and not known.cancelled:  # nobody asked for it
            assert settle_runs(driver, [Settlement(*hold, ending)])[0][hold] == "superseded"
            return
        for _ in range(2):  # a repeat answers the same
            assert settle_runs(driver, [Settlement(*hold, ending)])[0][hold] == "ok"
        known.state, known.lapsed = ending, False

    @rule(number=NUMBER)
    def settle_by_a_stranger(self, number: int) -> None:
        if found := self._run(number, *HOLDING):
            hold = (found[0], found[1].epoch)
            stranger = self.drivers[(found[1].driver + 1) % DRIVERS]
            assert settle_runs(stranger, [Settlement(*hold, "succeeded")])[0][hold] == "superseded"

    @rule(number=NUMBER)
    def cancel(self, number: int) -> None:
        if (found := self._run(number)) is None:
            return
        run, known = found
        answer = cancel_runs([run], actor=SYSTEM)
        if known.state == "queued":
            known.state = "cancelled"
            assert answer == {run: "cancelled"}
        elif known.holding:
            known.cancelled = True
            assert answer == {run: known.state}
        else:
            assert answer == {}

    @rule(number=NUMBER, own=st.booleans())
    def take_away(self, number: int, own: bool) -> None:
        if (found := self._run(number, *HOLDING)) is None:
            return
        run, known = found
        hold = (run, known.epoch)
        taken = give_back(self.drivers[known.driver], [hold], "") if own else take([hold], OPERATOR)
        self.model.taken(known)
        assert [t.state for t in taken] == [known.state]
        assert take([hold], OPERATOR) == []

    # -- leases

    @rule(number=NUMBER, outside=st.booleans())
    def lapse(self, number: int, outside: bool) -> None:
        if outside and self.model.permits:
            name = sorted(self.model.permits)[number % len(self.model.permits)]
            Permit.objects.filter(holder=name).update(renewed_at=timezone.now() - HOUR)
            self.model.permits[name].lapsed = True
        elif not outside and (found := self._run(number, *HOLDING)):
            lapsed = Permit.objects.filter(run=found[0]).update(renewed_at=timezone.now() - HOUR)
            found[1].lapsed = lapsed > 0
            self._perhaps_saved(number, *found)

    def _perhaps_saved(self, number: int, run: int, known: ModelRun) -> None:
        """A start or a renewal that comes in time; the reaper right behind it shows what it saved."""
        hold = (run, known.epoch)
        if number % 3 == 0 and known.state == "admitted" and not known.cancelled:
            assert start_runs(self.drivers[known.driver], [hold]) == {hold: "ok"}
            known.state, known.tries, known.lapsed = "running", known.tries + 1, False
        elif number % 3 == 1:
            assert renew_runs(self.drivers[known.driver], [hold]) == {hold: "cancel" if known.cancelled else "ok"}
            known.lapsed = False
        if number % 2:
            self._reap()

    @rule()
    def reap(self) -> None:
        self._reap()

    def _reap(self) -> None:
        lapsed = [r for r in self.model.runs.values() if r.lapsed]
        gone = [h for h, p in self.model.permits.items() if p.lapsed]
        ready_to_reap()
        assert reap_run_permits().counts == {"runs": len(lapsed)}
        assert reap_outside_permits().counts == {"permits": len(gone)}
        for run in lapsed:
            self.model.taken(run)
        for holder in gone:
            del self.model.permits[holder]

    # -- operators

    @rule(number=NUMBER, limit=st.integers(0, 4))
    def quota(self, number: int, limit: int) -> None:
        tenant, known = self._tenant(number)
        change = set_quota(known.row, limit, actor=SYSTEM)
        assert change.before == known.quota
        known.quota = limit
        # Nothing is killed: above a lowered or first limit the tenant may stand, and only sink.
        known.before = self.model.in_flight(tenant)
        assert change.in_flight == known.before

    @rule(number=NUMBER)
    def unlimit(self, number: int) -> None:
        tenant, known = self._tenant(number)
        assert (remove_quota(known.row, actor=SYSTEM) is None) is (known.quota is None)
        known.quota = None
        for run in self.model.runs.values():
            run.lapsed = run.lapsed and run.tenant != tenant

    @rule(number=NUMBER)
    def pause_or_resume(self, number: int) -> None:
        _, known = self._tenant(number)
        if known.paused:
            assert resume_tenant(known.row, actor=SYSTEM) is True
        else:
            assert pause_tenant(known.row, actor=SYSTEM, reason="a test") is True
        known.paused = not known.paused

    @precondition(lambda self: self.model.tenants)
    @rule(number=NUMBER)
    def delete(self, number: int) -> None:
        tenant, known = self._tenant(number)
        live = any(r.tenant == tenant and (r.holding or r.state == "queued") for r in self.model.runs.values())
        if live or any(p.tenant == tenant for p in self.model.permits.values()):
            with pytest.raises(Conflict):
                delete_tenant(known.row, actor=SYSTEM, reason="a test")
            return
        gone = known.row.pk
        delete_tenant(known.row, actor=SYSTEM, reason="a test")
        assert not Permit.objects.filter(tenant_id=gone).exists()
        assert not Counter.objects.filter(key=str(gone)).exists()
        with pytest.raises(NotFound):
            claim_permit("ext:late", tenant_id=gone)
        self.model.runs = {i: r for i, r in self.model.runs.items() if r.tenant != tenant}
        self.model.tenants[tenant] = ModelTenant(ledger.make_tenant())

    # -- what holds after every step

    @invariant()
    def conserved(self) -> None:
        ledger.assert_conserved()

    @invariant()
    def states_are_the_models(self) -> None:
        rows = self._read_epochs()
        assert {r: state for r, (state, _) in rows.items()} == {r: m.state for r, m in self.model.runs.items()}

    @invariant()
    def permits_stand_for_exactly_what_is_open(self) -> None:
        limited = {n for n, t in enumerate(self.model.tenants) if t.quota is not None}
        runs = sorted(i for i, r in self.model.runs.items() if r.holding and r.tenant in limited)
        of_runs = Permit.objects.filter(run__isnull=False).order_by("run_id").values_list("run_id", flat=True)
        assert list(of_runs) == runs
        outside = dict(Permit.objects.filter(run__isnull=True).values_list("holder", "weight"))
        assert outside == {h: p.weight for h, p in self.model.permits.items()}

    @invariant()
    def within_the_limit(self) -> None:
        counted: dict[Any, int] = dict(Counter.objects.filter(scope="tenant").values_list("tenant_id", "in_flight"))
        for tenant, known in enumerate(self.model.tenants):
            now = counted[known.row.pk]
            assert now == self.model.in_flight(tenant)
            assert known.quota is None or now <= max(known.quota, known.before)
            known.before = now


def prove(examples: int, steps: int, *, shrink: bool = False) -> None:
    # Shrinking takes minutes on a real database: the time of a test's own, so only where there is as much.
    phases = [phase for phase in Phase if shrink or phase is not Phase.shrink]
    chosen = settings(
        phases=phases,
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Ledger, settings=chosen)


@pytest.mark.rule("A4", "A5", "A6", "A7", "A8", "A9", "A11", "A14", "A15", "A26", "R8")
def test_no_sequence_of_verbs_leads_the_ledger_away_from_the_model() -> None:
    prove(12, 40)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.rule("A4", "A5", "A6", "A7", "A8", "A9", "A11", "A14", "A15", "A26", "R8")
def test_no_long_sequence_of_verbs_leads_the_ledger_away_from_the_model() -> None:
    prove(EXAMPLES, 80, shrink=True)
