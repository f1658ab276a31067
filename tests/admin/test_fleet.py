"""The fleet page: right numbers, few statements, its own time, and something to do when nothing is there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from admission.models import Counter as CounterRow
from admission.models import Run
from controlplane.core.models import Sample
from controlplane.fleet import selectors
from controlplane.fleet.charts import Bar
from controlplane.fleet.selectors import read_fleet
from leadership.election import LOOPS
from leadership.models import Fire, Lease
from recovery.models import Replica
from tests.admin.world import replica

BUDGET = 11
"""Statements of one reading, whatever the fleet's size; session and permissions come on top."""


def test_counts_are_those_of_the_ledger(world: dict[str, Any]) -> None:
    states = Counter(Run.objects.values_list("state", flat=True))
    tiles = {tile.label.replace(" ", "_"): int(tile.value) for tile in read_fleet().tiles}
    delayed = Run.objects.filter(state="queued", delayed=True).count()
    assert tiles.pop("queued") == states["queued"] - delayed
    assert tiles == {name: states[name] for name in tiles}


def test_counts_that_reached_their_cap_do_not_pass_for_a_days(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selectors, "ENDED_CAP", 3)
    monkeypatch.setattr(selectors, "COUNT_CAP", 2)
    fleet = read_fleet()
    tiles = {tile.label: tile for tile in fleet.tiles}
    assert tiles["queued"].value == "2+"
    assert tiles["succeeded"].note == "of the last 3"
    assert sum(int(tiles[name].value) for name in ("succeeded", "failed", "timed out", "cancelled")) == 3
    assert fleet.ended_last_hour == "2+"


def test_tenants_come_by_pressure_with_overage_and_use_without_quota(world: dict[str, Any]) -> None:
    tenants = read_fleet().tenants
    assert [t.slug for t in tenants] == ["borealis", "acme", "delta", "cargo"]
    over = tenants[0]
    assert over.limit is not None
    assert over.used > over.limit
    cargo = tenants[-1]
    held = Run.objects.filter(tenant=world["cargo"], state__in=("admitted", "running")).count()
    assert (cargo.limit, cargo.used) == (None, held + 2)  # and the warehouse's own permit of weight 2


@pytest.mark.rule("A15")
def test_the_excess_over_a_lowered_quota_is_shown(world: dict[str, Any], admin: Client) -> None:
    over = next(t for t in read_fleet().tenants if t.slug == "borealis")
    assert over.limit is not None
    assert f"{over.used - over.limit} over" in admin.get(reverse("admin:index")).content.decode()


def test_a_reading_costs_the_same_for_a_larger_fleet(world: dict[str, Any]) -> None:
    with CaptureQueriesContext(connection) as few:
        read_fleet()
    for n in range(30):
        replica(f"more-{n}")
    with CaptureQueriesContext(connection) as many:
        read_fleet()
    assert len(few) == len(many) == BUDGET


def test_health_is_judged_by_the_database_clock(world: dict[str, Any]) -> None:
    health = {driver.name: driver.health for driver in read_fleet().drivers}
    assert health == {
        "replica-north": "live",
        "replica-south": "draining",
        "lab-rack-0": "silent",
        "lab-rack-1": "live",
    }


@pytest.mark.rule("A5")
def test_a_drifting_counter_shows(world: dict[str, Any]) -> None:
    def conservation() -> tuple[str, str]:
        return next((c.tone, c.text) for c in read_fleet().components if c.name == "Conservation")

    assert conservation() == ("good", "exact")
    CounterRow.objects.filter(tenant=world["acme"]).update(in_flight=99)
    assert conservation() == ("bad", "1 drifting")


def lead(ends_in: timedelta, **more: Any) -> None:
    Lease.objects.all().delete()
    now = timezone.now()
    Lease.objects.create(
        role=LOOPS, term=7, holder="x", holder_name="replica-north", acquired_at=now, renewed_at=now,
        expires_at=now + ends_in, **more,
    )  # fmt: skip


def components() -> dict[str, tuple[str, str, str]]:
    return {c.name: (c.tone, c.text, c.note) for c in read_fleet().components}


@pytest.mark.rule("L4", "L7")
def test_the_leader_its_term_and_the_rest_of_its_lease_show_and_nobody_for_two_leases_is_an_alarm(
    world: dict[str, Any],
) -> None:
    Fire.objects.all().delete()
    lead(timedelta(seconds=20.4))
    shown = components()
    assert shown["Leader"] == ("good", "replica-north", "term 7, 20 s left")
    assert "No leader" not in shown
    lead(timedelta(seconds=20.4), step_down_at=timezone.now())
    assert components()["Leader"] == ("warn", "replica-north", "term 7, 20 s left, asked to step down")
    lead(timedelta(seconds=-50))
    assert components()["Leader"] == ("warn", "nobody", "last term 7")
    assert "No leader" not in components(), "a failover is not an alarm"
    lead(timedelta(seconds=-70))
    tone, _, note = components()["No leader"]
    assert tone == "bad"
    assert "Start a replica" in note


@pytest.mark.rule("L7")
def test_a_sweep_that_no_qcluster_takes_is_an_alarm_on_the_page(world: dict[str, Any], admin: Client) -> None:
    Fire.objects.all().delete()
    lead(timedelta(seconds=20))
    waiting = Fire.objects.create(
        loop="samples", fire_at=timezone.now(), term=7, enqueued_at=timezone.now() - timedelta(seconds=10)
    )
    assert "No qcluster" not in components()
    Fire.objects.filter(pk=waiting.pk).update(enqueued_at=timezone.now() - timedelta(seconds=45))
    assert components()["No qcluster"][0] == "bad"
    assert "manage.py qcluster" in admin.get(reverse("admin:fleet_live")).content.decode()


def test_the_chart_of_a_day_sums_what_ended_and_shows_the_longest_queue(world: dict[str, Any], admin: Client) -> None:
    assert "Last 24 hours" not in admin.get(reverse("admin:index")).content.decode(), "no sample, no chart"
    now = timezone.now()
    taken = [
        ("runs", "queued", 5, 8), ("runs", "queued", 20, 40), ("runs", "running", 20, 999), ("ended", "failed", 20, 3),
        ("ended", "succeeded", 21, 9), ("in_flight", "acme", 20, 999), ("ended", "succeeded", 25 * 60, 999),
    ]  # fmt: skip
    for series, key, minutes, value in taken:
        Sample.objects.create(series=series, key=key, value=value, at=now - timedelta(minutes=minutes))
    day = read_fleet().day
    assert day is not None
    assert (day.ended, day.longest_queue) == ("12", "40")
    assert day.bars == [Bar(3 * 94, "0.0", "60.0")]
    assert day.queue == "283.5,0.0 286.5,48.0"
    assert "the longest queue was 40" in admin.get(reverse("admin:fleet_live")).content.decode()


def test_an_empty_fleet_says_what_to_do_next(admin: Client) -> None:
    page = admin.get(reverse("admin:index")).content.decode()
    assert reverse("admin:admission_tenant_add") in page
    assert "wharfinger submit" in page
    assert "manage.py replica" in page


@pytest.mark.rule("O5")
def test_the_fragment_names_its_time_and_is_never_cached(world: dict[str, Any], admin: Client) -> None:
    response = admin.get(reverse("admin:fleet_live"))
    assert "no-store" in response["Cache-Control"]
    assert re.search(
        r"as of <time datetime=\"[^\"]+\" data-live-asof>\d\d:\d\d:\d\d</time>", response.content.decode()
    )
    page = admin.get(reverse("admin:index"))
    assert "no-store" in page["Cache-Control"]
    assert f'data-live-url="{reverse("admin:fleet_live")}"' in page.content.decode()


@pytest.mark.parametrize("name", ["index", "fleet_live"])
def test_nobody_sees_the_fleet_without_signing_in(name: str, world: dict[str, Any], client: Client) -> None:
    assert client.get(reverse(f"admin:{name}")).status_code == 302


def test_live_addresses_are_read_only(world: dict[str, Any], admin: Client) -> None:
    run = Run.objects.filter(attempt__gte=1).first()
    assert run is not None
    for address in (
        reverse("admin:fleet_live"),
        reverse("admin:run_log", args=[run.pk]),
        reverse("admin:tenant_peak", args=[run.tenant_id]),
    ):
        assert admin.get(address).status_code == 200
        assert admin.post(address).status_code == 405


def test_staff_without_a_role_see_no_numbers(world: dict[str, Any], sign_in: Callable[..., Client]) -> None:
    client = sign_in("viewer")
    assert client.get(reverse("admin:fleet_live")).status_code == 200
    user = client.get(reverse("admin:index")).wsgi_request.user
    user.groups.clear()
    assert client.get(reverse("admin:fleet_live")).status_code == 403
    assert "no role" in client.get(reverse("admin:index")).content.decode()


def test_the_root_leads_to_the_fleet(client: Client) -> None:
    assert client.get("/")["Location"] == reverse("admin:index")


def test_a_replica_that_is_not_heard_is_silent_also_while_draining(world: dict[str, Any]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE recovery_replica SET beat_at = now() - interval '10 minutes'")
    assert Replica.objects.filter(draining_at__isnull=False).exists()
    assert {d.health for d in read_fleet().drivers if d.kind == "replica"} == {"silent"}


def test_the_page_brings_its_own_style_and_script(admin: Client) -> None:
    page = admin.get(reverse("admin:index")).content.decode()
    assert "/static/controlplane/console.css" in page
    assert "/static/controlplane/live.js" in page
