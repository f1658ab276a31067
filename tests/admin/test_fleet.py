"""The fleet page: right numbers, few statements, its own time, and something to do when nothing is there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from admission.models import Counter as CounterRow
from admission.models import Run
from controlplane.fleet import selectors
from controlplane.fleet.selectors import read_fleet
from recovery.models import Replica
from tests.admin.world import replica

BUDGET = 7
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
