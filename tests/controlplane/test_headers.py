"""What of a request's headers the application is told."""

from __future__ import annotations

import io
from types import SimpleNamespace

from controlplane.bridge import environ


def test_a_header_with_an_underscore_cannot_stand_in_for_a_proxys_own() -> None:
    scope = SimpleNamespace(
        server="127.0.0.1:80", method="GET", path="/", query_string="", http_version="1.1", client="10.0.0.1:5",
        scheme="http", authority=None, headers={"x_forwarded_proto": "https", "x-forwarded-proto": "http"},
    )  # fmt: skip
    assert environ(scope, io.BytesIO())["HTTP_X_FORWARDED_PROTO"] == "http"
