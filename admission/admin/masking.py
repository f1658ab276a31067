"""A run's specification as an operator may see it: what it runs, never what it must not tell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "••••••"
_SECRET = re.compile(r"(?i)(pass(word|wd)?|secret|token|api[-_]?key|credential|private[-_]?key|authorization|bearer)")
_URL_PASSWORD = re.compile(r"(://[^/\s:@]*:)[^@/\s]+@")


def masked_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Values of `env` hidden, contents of `files` as sizes, arguments that look like secrets hidden.

    Secrets stand in the specification by name only, so `secrets` is shown.
    """
    shown = dict(spec)
    if isinstance(env := spec.get("env"), Mapping):
        shown["env"] = dict.fromkeys(env, MASK)
    if isinstance(files := spec.get("files"), Mapping):
        shown["files"] = {name: _file(content) for name, content in files.items()}
    if isinstance(command := spec.get("command"), list):
        shown["command"] = masked_command(command)
    if isinstance(metadata := spec.get("metadata"), Mapping):
        shown["metadata"] = {key: MASK if _SECRET.search(key) else value for key, value in metadata.items()}
    return shown


def masked_command(command: list[Any]) -> list[str]:
    """`--token=x`, `--password x`, `KEY_SECRET=x` and passwords in addresses, without what they hold."""
    shown: list[str] = []
    hide_next = False
    for part in map(str, command):
        name, equals, _ = part.partition("=")
        if hide_next:
            shown.append(MASK)
        elif equals and _SECRET.search(name) and "\n" not in name:
            shown.append(f"{name}={MASK}")
        else:
            shown.append(_URL_PASSWORD.sub(rf"\g<1>{MASK}@", part))
        hide_next = part.startswith("-") and not equals and bool(_SECRET.search(part)) and "\n" not in part
    return shown


def _file(content: object) -> str:
    if not isinstance(content, Mapping):
        return MASK
    for kind in ("text", "base64"):
        if isinstance(value := content.get(kind), str):
            return f"{kind}, {len(value):,} characters"
    return MASK
