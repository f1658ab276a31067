"""The Redis keys of one instance: its id never appears in them, one hash tag keeps them on one node."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

PREFIX = "wharfinger:admission"


def instance_hash(instance_id: str) -> str:
    """What stands for the instance in keys and in the label `wharfinger.instance`: SHA-256, 64 hexadecimal digits."""
    return hashlib.sha256(instance_id.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Keys:
    """Every key that a script may touch, always passed as KEYS in this order."""

    holders: str
    config: str
    waiting: str

    @classmethod
    def of(cls, instance: str) -> Keys:
        """The keys of the instance with this hash."""
        tag = f"{PREFIX}:{{{instance}}}"
        return cls(f"{tag}:holders", f"{tag}:config", f"{tag}:waiting")

    @property
    def all(self) -> tuple[str, str, str]:
        """In the order of KEYS."""
        return (self.holders, self.config, self.waiting)
