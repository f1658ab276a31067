"""How secrets stand in the database: encrypted and authenticated, bound to their tenant and name (rule Q13).

Fernet (AES-128-CBC with HMAC-SHA256) of the `cryptography` package. The keys are derived from the texts in
CONTROLPLANE_SECRETS_KEYS: the first seals, each opens, so a new one is put in front, `manage.py secret reseal` is run,
and the old one is taken away. Behind them stands the key derived from SECRET_KEY, which alone serves where none is
given. Without these texts a copy of the database tells nothing.
"""

from __future__ import annotations

import base64
import json
from functools import lru_cache
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

from controlplane.core.conf import conf

PURPOSE = b"wharfinger secrets 1"


class Unreadable(Exception):
    """None of the keys opens it, or it stands where another belongs. Says nothing of what is in it."""


def given_keys() -> list[str]:
    """The texts that an operator gave, the sealing one first."""
    configured = conf()
    text = configured.secrets_keys.replace(",", "\n")
    if configured.secrets_keys_file:
        text += "\n" + Path(configured.secrets_keys_file).read_text()
    return [key for line in text.splitlines() if (key := line.strip())]


def seal(tenant_id: int, name: str, value: str) -> bytes:
    """What is stored."""
    inside = json.dumps([tenant_id, name, value])
    return _boxes(tuple(given_keys()), settings.SECRET_KEY).encrypt(inside.encode())


def unseal(tenant_id: int, name: str, sealed: bytes) -> str:
    """The value.

    Raises:
        Unreadable: it was sealed with another key, or for another tenant or name.
    """
    try:
        inside = json.loads(_boxes(tuple(given_keys()), settings.SECRET_KEY).decrypt(sealed))
    except InvalidToken:
        # Not chained: the token is in the message of nobody, and must not get into a stack either.
        raise Unreadable(f"the secret {name!r} cannot be opened with the keys that this process has") from None
    if inside[:2] != [tenant_id, name]:
        raise Unreadable(f"what is stored as the secret {name!r} was sealed for another place")
    return str(inside[2])


@lru_cache(maxsize=4)
def _boxes(keys: tuple[str, ...], last: str) -> MultiFernet:
    return MultiFernet([Fernet(_derived(key)) for key in (*keys, last)])


def _derived(text: str) -> bytes:
    # Derived, not taken as they are: SECRET_KEY signs sessions and job tokens too, and none of these may tell another.
    key = HKDF(algorithm=SHA256(), length=32, salt=None, info=PURPOSE).derive(text.encode())
    return base64.urlsafe_b64encode(key)
