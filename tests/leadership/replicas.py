"""Real `manage.py replica` processes, and their belief as their own logs tell it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from leadership.belief import now
from tests.leadership.world import World, shifted, until


@dataclass
class Fleet(World):
    """Replicas with pinned ids that execute with the process executor. Each incarnation has a label and a log."""

    labels: list[str] = field(default_factory=list)

    def replica(self, name: str, *, fake: str = "", **extra: str) -> str:
        """Start one; returns the label of this incarnation."""
        label = f"{name}.{len(self.labels)}"
        self.labels.append(label)
        self.fakes[name] = fake
        pinned = {"CONTROLPLANE_REPLICA_ID": name, "CONTROLPLANE_EXECUTOR": "process", "LOG_LEVEL": "DEBUG"}
        self._start(label, ["manage.py", "replica"], {**pinned, **shifted(fake), **extra})
        return label

    def revive(self, name: str) -> None:
        """The next incarnation under the same pinned id."""
        replica = name.partition(".")[0]
        self.replica(replica, fake=self.fakes[replica])

    def lines(self) -> list[dict[str, Any]]:
        """In the terms of the members' journals."""
        return [line for label in self.labels for line in self._belief_of(label)]

    def _belief_of(self, label: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        who = {"name": label, "pid": self.processes[label].pid}
        for event in self.events(label, "leader."):
            if event["event"] == "leader.believes":
                who["term"] = event["term"]
                # At that moment it did believe: a sign of life, too.
                found.append({**who, "from": event["clock"], "until": event["until"], "acted": event["clock"]})
            elif event["event"] == "leader.ends":
                found.append({**who, "ended": event["clock"]})
        return found

    def events(self, label: str, prefix: str) -> list[dict[str, Any]]:
        """What an incarnation logged under names that begin so; whole lines only."""
        whole = self.log(label).rpartition("\n")[0].splitlines()
        parsed = [json.loads(line) for line in whole if f'"event": "{prefix}' in line]
        return [line for line in parsed if line["event"].startswith(prefix)]

    def started(self, label: str) -> bool:
        """Whether it got as far as its work; fails if it ended instead."""
        assert self.processes[label].poll() is None, self.log(label)[-2000:]
        return bool(self.events(label, "replica.started"))

    def leader(self) -> str:
        """The label of the one that believes now; waits for one."""

        def look() -> str:
            last = {x["name"]: x for x in self.lines()}  # the newest line of each
            held = [n for n, x in last.items() if x.get("until", 0) > now() and self.processes[n].poll() is None]
            return held[0] if held else ""

        return str(until(look, "nobody leads"))
