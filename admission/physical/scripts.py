"""The Lua files as scripts: one text each, with the shared part and the durations in front, known by its SHA-1."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

DIRECTORY = Path(__file__).parent / "lua"
COMMON = "common"
NAMES = tuple(sorted(path.stem for path in DIRECTORY.glob("*.lua") if path.stem != COMMON))

WAITER_SECONDS = 30
"""P15: who does not ask again for this long waits no more."""


@dataclass(frozen=True, slots=True)
class Script:
    """What EVALSHA names, and the text for a server that does not know it yet."""

    name: str
    text: str
    sha: str


@lru_cache(maxsize=8)
def load(hold_seconds: float) -> dict[str, Script]:
    """Every script, for slots that are held for `hold_seconds` at a time."""
    constants = f"local HOLD_US, WAITER_US = {hold_seconds * 1e6:.0f}, {WAITER_SECONDS * 1_000_000}"
    common = (DIRECTORY / f"{COMMON}.lua").read_text()
    return {name: _script(name, constants, common) for name in NAMES}


def _script(name: str, constants: str, common: str) -> Script:
    # The shebang has to be the first line: it makes the flags count.
    shebang, _, body = (DIRECTORY / f"{name}.lua").read_text().partition("\n")
    text = "\n".join((shebang, constants, common, body))
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
