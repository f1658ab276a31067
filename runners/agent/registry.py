"""What an image's registry is asked with: from the value of a secret to what the daemon passes on (rules P17, Q13).

The value is `user:password`, for whatever registry the image names, or Docker's own JSON of many registries (what
`docker login` writes). Nothing of it is in a message: these say which secret, and for which registry.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import TYPE_CHECKING, Any

from runners.agent.executors.base import ImageUnavailable

if TYPE_CHECKING:
    from admission.spec import RunSpec

HUB = "docker.io"
HUB_ADDRESS = f"https://index.{HUB}/v1/"
"""The name of Docker's own registry where credentials are kept."""
_HUBS = {HUB, "index.docker.io", "registry-1.docker.io"}
_WANTS_LOGIN = re.compile(
    r"unauthorized|no basic auth|authentication required|denied|forbidden|\b40[13]\b", re.IGNORECASE
)
_FORMS = 'write user:password, or Docker\'s JSON {"auths": {"registry": {"auth": …}}}'

Login = dict[str, str]
"""As the Docker API takes it; empty: the registry is asked as anybody."""


def registry_of(image: str) -> str:
    """The host that an image's name begins with; Docker's own where it names none."""
    first, separator, _ = image.partition("/")
    named = separator and ("." in first or ":" in first or first == "localhost")
    # The daemon takes Docker's own registry by its older names too, and credentials are kept under the one.
    return first if named and first not in _HUBS else HUB


def login_of(spec: RunSpec, value: str) -> Login:
    """What the registry of this run's image is asked with.

    Raises:
        ImageUnavailable: the secret cannot serve for that; says which, and what to do.
    """
    if spec.registry_secret is None:
        return {}
    what = f"image {spec.image} cannot be pulled: the secret {spec.registry_secret!r}"
    repair = f"set it anew (wharfinger secret set {spec.registry_secret})"
    entries = _entries(value)
    if entries is None:
        raise ImageUnavailable(f"{what} cannot be read as a registry's credentials; {_FORMS}, and {repair}")
    host = registry_of(spec.image)
    # Plain user:password serves for the registry that the image names; its owner wrote both.
    found = entries.get("", entries.get(host))
    if found is None:
        raise ImageUnavailable(f"{what} holds no usable credentials for {host}; add them under that name and {repair}")
    return {**found, "serveraddress": HUB_ADDRESS if host == HUB else host}


def advice(spec: RunSpec, refusal: str) -> str:
    """What to do about a pull that the registry refused; '' where credentials are not what is missing."""
    if not _WANTS_LOGIN.search(refusal):
        return ""
    if spec.registry_secret is None:
        return (
            "; if the image is there and private: store credentials with `wharfinger secret set NAME` "
            "(user:password) and name them in the run's registry_secret"
        )
    name = spec.registry_secret
    return (
        f"; the registry does not let the credentials of the secret {name!r} read this image: correct them "
        f"(wharfinger secret set {name}), or have the account given access"
    )


def hidden_parts(value: str) -> list[str]:
    """Everything of a registry secret that no output may tell: the whole, each password, each encoded pair."""
    found = [value]
    for entry in (_entries(value) or {}).values():
        pair = f"{entry.get('username', '')}:{entry.get('password', '')}"
        found += [entry.get("password", ""), entry.get("identitytoken", ""), pair if pair != ":" else ""]
    return [text for text in found if text]


def _entries(value: str) -> dict[str, Login] | None:
    """Logins by host, '' for any host; None: it is of neither form."""
    text = value.strip()
    if not text.startswith("{"):
        return None if (login := _pair(text)) is None else {"": login}
    try:
        auths = json.loads(text)["auths"].items()
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return {_host(name): login for name, entry in auths if (login := _login(entry)) is not None}


def _host(name: str) -> str:
    host = name.rpartition("://")[2].partition("/")[0]
    return HUB if host in _HUBS else host


def _login(entry: Any) -> Login | None:
    if not isinstance(entry, dict):
        return None
    if isinstance(token := entry.get("identitytoken"), str) and token:
        return {"identitytoken": token}
    if isinstance(user := entry.get("username"), str) and isinstance(password := entry.get("password"), str):
        return {"username": user, "password": password}
    try:
        return _pair(base64.b64decode(entry["auth"], validate=True).decode())
    except (KeyError, TypeError, ValueError, binascii.Error):
        return None


def _pair(text: str) -> Login | None:
    user, separator, password = text.partition(":")
    return {"username": user, "password": password} if separator and user and password else None
