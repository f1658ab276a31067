"""The run specification: one schema for REST, the command line, JSONL files and the stored row.

Plain pydantic, no Django, so that the agent on somebody else's machine reads what the server validated with the same
code. A stored specification is parsed again at admission: a row that no longer parses is set aside with its reason
(rule A25) instead of stopping those behind it.
"""

from __future__ import annotations

import base64
import binascii
import json
import posixpath
import re
from datetime import datetime
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, JsonValue, model_validator

MAX_FILES = 64
MAX_FILES_BYTES = 1 << 20
MAX_INTEGER = 2**31 - 1
PRIORITY_RANGE = 1000
MAX_WEIGHT = 10_000
"""So that 200,000 runs at once still sum up within a counter's column."""

MIB = 1 << 20

YEARS: Final = (1970, 8999)
"""Of moments. The database keeps more than Python can read back: a year 10,000, or one before Christ, by its zone."""

PATTERN_CHARACTERS: Final = frozenset("*?[")
"""A path to keep that has one of these is a pattern."""

Backend = Literal["docker", "process"]
BACKENDS: Final[tuple[str, ...]] = get_args(Backend)

Pull = Literal["missing", "always", "never"]


def _is_name(value: str) -> str:
    if not value or value != value.strip() or any(ord(c) < 0x20 for c in value):
        raise ValueError("must be non-empty text without leading or trailing space or control characters")
    return value


def _is_relative_path(value: str) -> str:
    clean = posixpath.normpath(value)
    if clean.startswith(("/", "..")) or clean == "." or "\x00" in value:
        raise ValueError(f"{value!r} must be a relative path inside the working directory")
    return clean


def _is_kept_path(value: str) -> str:
    clean = _is_relative_path(value)
    for part in clean.split("/"):
        if "**" in part and part != "**":
            raise ValueError(f"{value!r}: ** stands for directories and must be alone between slashes, as in **/*.txt")
        if "[" in re.sub(r"\[!?\]?[^]]*\]", "", part):
            raise ValueError(f"{value!r}: a [ has no ] after it in the same name; for a [ itself write [[]")
    if not clean.isprintable() or "\\" in clean:
        raise ValueError("must be a path of printable characters without a backslash")
    return clean


def _is_absolute_path(value: str) -> str:
    clean = posixpath.normpath(value)
    if not clean.startswith("/") or clean == "/" or ":" in clean or "\x00" in value:
        raise ValueError(f"{value!r} must be an absolute path below / without a colon")
    return clean


def _has_no_nul(value: str) -> str:
    # PostgreSQL's jsonb refuses U+0000, and no argument vector can carry it.
    if "\x00" in value:
        raise ValueError("must not contain the character U+0000")
    return value


def _is_storable(value: datetime) -> datetime:
    if not YEARS[0] <= value.year <= YEARS[1]:
        raise ValueError(f"must be a moment of the years {YEARS[0]} to {YEARS[1]}")
    return value


Text = Annotated[str, AfterValidator(_has_no_nul)]
Moment = Annotated[AwareDatetime, AfterValidator(_is_storable)]
Name = Annotated[str, Field(max_length=200), AfterValidator(_is_name)]
RelativePath = Annotated[str, Field(max_length=500), AfterValidator(_is_relative_path)]
KeptPath = Annotated[str, Field(max_length=500), AfterValidator(_is_kept_path)]
AbsolutePath = Annotated[str, Field(max_length=500), AfterValidator(_is_absolute_path)]
EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]
LabelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=100)]


class _Strict(BaseModel):
    """A misspelt field is an error with its name, never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_max_length=MAX_FILES_BYTES)


class InputFile(_Strict):
    """A small input, placed read-only below the working directory before the command starts."""

    text: Text | None = None
    base64: str | None = None
    executable: bool = False

    @model_validator(mode="after")
    def _exactly_one_content(self) -> InputFile:
        if (self.text is None) == (self.base64 is None):
            raise ValueError("give exactly one of 'text' and 'base64'")
        if self.base64 is not None:
            try:
                base64.b64decode(self.base64, validate=True)
            except binascii.Error as error:
                raise ValueError(f"'base64' does not decode: {error}") from error
        return self

    def content(self) -> bytes:
        """The bytes to place."""
        if self.text is not None:
            return self.text.encode()
        return base64.b64decode(self.base64 or "", validate=True)


class Resources(_Strict):
    """Limits of one execution; applied by the executor and verified as applied."""

    cpu: float = Field(default=1.0, gt=0, le=1024, description="Processors, fractions allowed.")
    memory_mib: int = Field(default=256, ge=16, le=MAX_INTEGER, description="Memory in MiB, swap included.")
    pids: int = Field(default=128, ge=1, le=1_000_000, description="Processes and threads at once.")
    disk_mib: int = Field(default=64, ge=1, le=MAX_INTEGER, description="Writable space in MiB.")


class RetryPolicy(_Strict):
    """What happens after an interruption (driver lost) and, only if asked for, after a failure."""

    on_interrupt: Literal["retry", "fail"] = "retry"
    on_failure: Literal["retry", "fail"] = "fail"
    max_attempts: int = Field(default=3, ge=1, le=100, description="Started attempts at most.")
    backoff_seconds: float = Field(default=1.0, ge=0, le=86_400, description="Doubles with each attempt.")


class RunSpec(_Strict):
    """Everything a tenant says about a run."""

    name: Name | None = None
    kind: Literal["task", "session"] = "task"
    image: Annotated[str, Field(max_length=500), AfterValidator(_is_name)] = "python:3-slim"
    pull: Pull = Field(default="missing", description="When the image is fetched: if it is not there, always, never.")
    registry_secret: EnvironmentName | None = Field(
        default=None,
        description="Name of a stored secret, user:password or Docker's auth JSON, for the image's registry.",
    )
    command: list[Text] = Field(min_length=1, max_length=1000)
    env: dict[EnvironmentName, Text] = Field(default_factory=dict, max_length=500)
    files: dict[RelativePath, InputFile] = Field(default_factory=dict, max_length=MAX_FILES)
    secrets: list[EnvironmentName] = Field(
        default_factory=list, max_length=100, description="Names of stored secrets; each is a variable of that name."
    )
    working_dir: AbsolutePath = "/work"
    resources: Resources = Resources()
    timeout_seconds: float = Field(default=3600, gt=0, le=30 * 86_400, description="Run time limit of an attempt.")
    queue_timeout_seconds: float | None = Field(default=None, gt=0, le=365 * 86_400)
    stop_grace_seconds: float = Field(default=5, ge=0, le=300, description="Between SIGTERM and SIGKILL.")
    network: Literal["none", "bridge"] = "none"
    backend: Backend | None = Field(default=None, description="Only drivers with this executor.")
    on_no_runner: Literal["wait", "fail"] = Field(
        default="wait", description="While no living driver could take it: wait, or fail after some minutes of that."
    )
    labels: dict[LabelName, Name] = Field(default_factory=dict, max_length=50, description="The driver must have all.")
    harness: Name | None = Field(default=None, description="Shared service whose concurrency limit applies.")
    priority: int = Field(default=0, ge=-PRIORITY_RANGE, le=PRIORITY_RANGE, description="1 is worth 60 s of waiting.")
    weight: int = Field(default=1, ge=1, le=MAX_WEIGHT, description="Slots of each limit that the run takes.")
    concurrency_key: Name | None = Field(default=None, description="At most one (or the key's limit) at a time.")
    not_before: Moment | None = None
    retry: RetryPolicy = RetryPolicy()
    artifacts: list[KeptPath] = Field(
        default_factory=list,
        max_length=100,
        description="Files and directories below the working directory to keep. Patterns: * ? [] in a name, and **.",
    )
    metadata: dict[str, JsonValue] = Field(default_factory=dict, max_length=100)

    @model_validator(mode="after")
    def _files_are_small(self) -> RunSpec:
        total = sum(len(f.content()) for f in self.files.values())
        if total > MAX_FILES_BYTES:
            raise ValueError(f"files hold {total} bytes; at most {MAX_FILES_BYTES} (put larger inputs in the image)")
        if "\\u0000" in json.dumps([self.metadata, self.artifacts, list(self.files)]):
            raise ValueError("must not contain the character U+0000")
        return self

    def stored(self) -> dict[str, Any]:
        """The JSON kept on the row: only what differs from the defaults, so that a million rows stay small."""
        return self.model_dump(mode="json", exclude_defaults=True)


def parse_spec(value: object) -> RunSpec:
    """Parse a submitted or stored specification.

    Raises:
        pydantic.ValidationError: with one entry per wrong field.
    """
    return RunSpec.model_validate(value)
