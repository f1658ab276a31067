"""Where the command line finds its server and its token: flag, then environment, then file."""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

PRIVATE = 0o600


class ConfigError(Exception):
    """What is missing or wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """What `runner enrol` stored."""

    url: str = ""
    token: str = ""
    id: int = 0
    name: str = ""
    executor: str = ""
    slots: int = 0
    identity: str = ""
    """By which what it made is found on this machine; it outlives the token."""


@dataclass(frozen=True, slots=True)
class Config:
    """One configuration file."""

    path: Path
    url: str = ""
    token: str = ""
    runner: RunnerConfig = field(default_factory=RunnerConfig)

    def save(self) -> None:
        """Write it, readable by its owner only from the first byte on. Raises ConfigError."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._write()
        except OSError as error:
            raise ConfigError(
                f"{self.path} cannot be written: {error.strerror}. Make it writable, or name another place: "
                "WHARFINGER_CONFIG, of a runner WHARFINGER_RUNNER_STATE."
            ) from error

    def _write(self) -> None:
        scratch = self.path.with_suffix(".new")
        scratch.unlink(missing_ok=True)
        handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
        with os.fdopen(handle, "w") as file:
            file.write(_toml({"url": self.url, "token": self.token}))
            values = {name: getattr(self.runner, name) for name in RunnerConfig.__dataclass_fields__}
            if self.runner.token:
                file.write("\n[runner]\n" + _toml(values))
        scratch.replace(self.path)

    def with_login(self, url: str, token: str) -> Config:
        """With another server and token."""
        return replace(self, url=url, token=token)

    def with_runner(self, runner: RunnerConfig) -> Config:
        """With another runner."""
        return replace(self, runner=runner)


def _toml(values: dict[str, Any]) -> str:
    # A JSON string is a TOML basic string, a JSON number a TOML number.
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items() if value)


def config_path() -> Path:
    """`WHARFINGER_CONFIG`, or the user's usual place."""
    if given := os.environ.get("WHARFINGER_CONFIG"):
        return Path(given)
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "wharfinger" / "config.toml"


def runner_config_path() -> Path:
    """A directory of its own where `WHARFINGER_RUNNER_STATE` names one: several runners on one machine."""
    if given := os.environ.get("WHARFINGER_RUNNER_STATE"):
        return Path(given) / "config.toml"
    return config_path()


def spool_directory(runner: RunnerConfig) -> Path:
    """Where this runner's undelivered results wait: `WHARFINGER_SPOOL`, beside its state, or the user's usual place.

    One for each runner and server: results of one are nothing to another.
    """
    given = os.environ.get("WHARFINGER_SPOOL")
    state = os.environ.get("WHARFINGER_RUNNER_STATE")
    usual = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "wharfinger" / "spool"
    base = Path(given) if given else Path(state) / "spool" if state else usual
    return base / f"runner-{runner.id}-{hashlib.sha256(runner.url.encode()).hexdigest()[:8]}"


def load_config(path: Path | None = None) -> Config:
    """The file, or an empty configuration where there is none."""
    path = path or config_path()
    try:
        values = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return Config(path)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. Correct it, or log in anew.") from error
    fields = RunnerConfig.__dataclass_fields__
    runner = _typed(path, values.get("runner", {}), dict, "runner")
    known = {n: _typed(path, v, type(fields[n].default), f"runner.{n}") for n, v in runner.items() if n in fields}
    url, token = (_typed(path, values.get(name, ""), str, name) for name in ("url", "token"))
    return Config(path, url, token, RunnerConfig(**known))


def _typed(path: Path, value: Any, kind: type, name: str) -> Any:
    if type(value) is kind:
        return value
    words = {str: "a text", int: "a whole number", dict: "a table"}
    raise ConfigError(f"{path} cannot be read: {name} must be {words[kind]}. Correct it, or log in anew.")


def read_secret(name: str, file: Path | None = None) -> str:
    """A secret from a file, from the variable, or from the file that `<name>_FILE` names; never from an argument."""
    if file is None and (text := os.environ.get(name)):
        return text.strip()
    path = file or (Path(given) if (given := os.environ.get(f"{name}_FILE")) else None)
    if path is None:
        return ""
    try:
        return path.read_text().strip()
    except OSError as error:
        raise ConfigError(f"the token file {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError:
        # Not chained: that error carries the bytes.
        raise ConfigError(f"the token file {path} holds no token: it is not text.") from None


def choose(url: str | None, token_file: Path | None) -> tuple[str, str]:
    """Server and token of a tenant's or an operator's call."""
    config = load_config()
    address = url or config.url
    token = read_secret("WHARFINGER_TOKEN", token_file) or config.token
    if not address:
        raise ConfigError("No server is named. Set WHARFINGER_URL, give --url, or run: wharfinger login --url …")
    if not token:
        raise ConfigError(
            "No token. Set WHARFINGER_TOKEN or WHARFINGER_TOKEN_FILE, or run: wharfinger login (it asks for it)."
        )
    return address, token
