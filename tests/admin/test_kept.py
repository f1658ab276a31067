"""Secrets and artifacts in the admin: written and never shown, listed and fetched as attachments."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import pytest
from django.test import Client, override_settings
from django.urls import reverse

from controlplane.core.models import AuditEntry
from runners.models import Secret
from runners.services.artifacts import Announced, store_artifact
from runners.services.sealing import unseal

VALUE = "hunter2-and-more"


def verb(admin: Client, verb_name: str, ids: str = "", **fields: str) -> Any:
    address = reverse("admin:runners_secret_verb", args=[verb_name])
    body = {"ids": ids, "step": "confirm", "seen": "", "reason": "a test", **fields}
    return admin.post(address, body, follow=True)


@pytest.mark.rule("Q13")
@pytest.mark.rule("O2")
def test_a_secret_is_written_and_never_shown(world: dict[str, Any], admin: Client) -> None:
    tenant = world["acme"]
    seen = [verb(admin, "set", tenant=tenant.slug, name="TOKEN", value=VALUE)]
    secret = Secret.objects.get(name="TOKEN")
    assert unseal(tenant.pk, "TOKEN", bytes(secret.value)) == VALUE
    seen.append(admin.get(reverse("admin:runners_secret_changelist")))
    seen.append(admin.get(reverse("admin:runners_secret_change", args=[secret.pk])))
    seen.append(verb(admin, "change", str(secret.pk), value="short"))  # shown again, without what was typed
    assert "at least 8 bytes" in seen[-1].content.decode()
    seen.append(verb(admin, "change", str(secret.pk), value=VALUE[::-1]))
    seen.append(admin.get(reverse("admin:core_auditentry_changelist")))
    for page in seen:
        text = page.content.decode()
        assert page.status_code == 200
        assert VALUE not in text
        assert VALUE[::-1] not in text
        assert ">short<" not in text
    secret.refresh_from_db()
    assert unseal(tenant.pk, "TOKEN", bytes(secret.value)) == VALUE[::-1]
    verb(admin, "delete", str(secret.pk))
    assert not Secret.objects.filter(name="TOKEN").exists()
    verbs = AuditEntry.objects.filter(subject="acme/TOKEN").order_by("id").values_list("verb", flat=True)
    assert list(verbs) == ["set_secret", "set_secret", "delete_secret"]


@pytest.mark.rule("Q8")
def test_the_page_of_a_run_lists_what_it_kept(
    world: dict[str, Any], admin: Client, tmp_path: Path, settings: Any
) -> None:
    driver, held = world["live"][0]
    name, data = "out/<b>&.html", b"<script>alert(1)</script>"
    stored = {**settings.STORAGES}
    stored["artifacts"] = {**stored["artifacts"], "OPTIONS": {"location": str(tmp_path)}}
    with override_settings(STORAGES=stored):
        announced = Announced(name, len(data), hashlib.sha256(data).digest())
        store_artifact(driver, *held[0], announced, io.BytesIO(data))
        page = admin.get(reverse("admin:admission_run_change", args=[held[0][0]])).content.decode()
        assert "out/&lt;b&gt;&amp;.html" in page
        assert "the run has not ended" in page
        fetched = admin.get(reverse("admin:run_artifact", args=[held[0][0], name]))
        assert b"".join(fetched.streaming_content) == data  # type: ignore[attr-defined]
        assert fetched["Content-Disposition"].startswith("attachment")
        assert fetched["X-Content-Type-Options"] == "nosniff"
        assert admin.get(reverse("admin:run_artifact", args=[held[0][0], "other"])).status_code == 404
        assert Client().get(reverse("admin:run_artifact", args=[held[0][0], name])).status_code == 302
