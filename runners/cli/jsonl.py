"""Reading a file of runs, one JSON object a line: what is wrong is reported by its line, the rest is submitted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from admission.spec import parse_spec

MOST_RUNS = 1000
MOST_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Line:
    """A line that holds a run."""

    number: int
    spec: dict[str, Any]
    key: str
    size: int

    def item(self) -> dict[str, Any]:
        """As the API takes it."""
        return {"spec": self.spec, "idempotency_key": self.key}


@dataclass(slots=True)
class Lines:
    """A file, judged."""

    right: list[Line] = field(default_factory=list)
    wrong: dict[int, str] = field(default_factory=dict)


def line_key(batch: str, number: int, text: bytes, salt: str = "") -> str:
    """The same line of the same batch is the same run, however often the file is sent; `salt` makes it another."""
    parts = [batch.encode(), str(number).encode(), text, *([salt.encode()] if salt else [])]
    return hashlib.sha256(b"\x00".join(parts)).hexdigest()


def read_lines(file: Iterable[bytes], batch: str, salt: str = "") -> Lines:
    """Judge every line; blank ones are skipped."""
    lines = Lines()
    for number, raw in enumerate(file, start=1):
        text = raw.strip()
        if not text:
            continue
        try:
            spec = _spec(text)
        except ValueError as error:
            lines.wrong[number] = str(error)
            continue
        lines.right.append(Line(number, spec, line_key(batch, number, text, salt), len(text)))
    return lines


def _spec(text: bytes) -> dict[str, Any]:
    """Raises ValueError with the reason."""
    try:
        value = json.loads(text.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8: {error.reason} at byte {error.start + 1}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("is not a JSON object")  # noqa: TRY004 - wrong input, not a wrong type of ours
    try:
        parse_spec(value)
    except ValidationError as error:
        raise ValueError(describe(error)) from error
    return value


def describe(error: ValidationError) -> str:
    """Field and reason of each finding; never the value, which may be a secret."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(
        f"{'.'.join(str(p) for p in e['loc']) or 'run'}: {str(e['msg']).removeprefix('Value error, ')}" for e in found
    )


def portions(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """What fits into one call."""
    portion: list[Line] = []
    size = 0
    for line in lines:
        if portion and (len(portion) >= MOST_RUNS or size + line.size > MOST_BYTES):
            yield portion
            portion, size = [], 0
        portion.append(line)
        size += line.size
    if portion:
        yield portion


def ranges(numbers: Iterable[int]) -> str:
    """Line numbers for people: `1-6, 8`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
