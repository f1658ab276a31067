"""What a Redis or Valkey server says about itself, and whether slots may be kept in it (P4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OLDEST_MAJOR = 7
"""Script flags: releases have to go on in a full memory."""

DURABLE_FSYNC = ("always", "everysec")


def parse_info(text: str) -> dict[str, str]:
    """The fields of an INFO reply."""
    pairs = (line.partition(":") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Read on each new connection, before anything else."""

    run_id: str
    product: str
    version: str
    mode: str
    role: str

    @classmethod
    def of(cls, info: Mapping[str, str]) -> ServerFacts:
        """From the sections `server` and `replication` of INFO."""
        return cls(
            run_id=info.get("run_id", ""),
            product=info.get("server_name") or "redis",
            version=info.get("redis_version", "0"),
            mode=info.get("redis_mode") or info.get("server_mode") or "standalone",
            role=info.get("role", ""),
        )

    def problem(self) -> str:
        """Why this server cannot keep slots at all; empty: it can."""
        if not self.run_id:
            return "INFO tells no run_id, without which a restart cannot be noticed: use Redis or Valkey itself"
        if int(self.version.partition(".")[0]) < OLDEST_MAJOR:
            return f"the server is of version {self.version}: Redis {OLDEST_MAJOR}.0 or Valkey is needed"
        if self.mode != "standalone":
            return f"the server runs in mode {self.mode}: slots need one standalone server; point REDIS_URL at one"
        if self.role != "master":
            return f"the server is a {self.role or 'server without a role'}: point REDIS_URL at the primary"
        return ""


def durability_problems(info: Mapping[str, str], config: Mapping[str, str] | None) -> list[str]:
    """What would let this server forget a holder; `config` is None where CONFIG GET is not allowed.

    `info` holds the sections `persistence` and `memory`.
    """
    problems = []
    if info.get("aof_enabled") != "1":
        problems.append("the append-only file is off: set `appendonly yes`")
    elif config is None:
        problems.append(
            "the user of REDIS_URL may not read `appendfsync` (CONFIG GET is refused): allow it with "
            "`ACL SETUSER … +config|get`"
        )
    elif config.get("appendfsync") not in DURABLE_FSYNC:
        problems.append(f"`appendfsync` is {config.get('appendfsync')}: set it to `always` or `everysec`")
    if info.get("aof_last_write_status", "ok") != "ok":
        problems.append("the last write to the append-only file failed: see the server's log, free its disk")
    policy = info.get("maxmemory_policy") or (config or {}).get("maxmemory-policy")
    if policy != "noeviction":
        problems.append(f"`maxmemory-policy` is {policy}, which may evict holders: set it to `noeviction`")
    return problems
