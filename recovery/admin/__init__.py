"""The admin of replicas and of what recovery does: reads here, writes through services only."""

from recovery.admin import debts, log, replicas

__all__ = ["debts", "log", "replicas"]
