"""The admin of the ledger and its limits: one module per kind of row. Reads here, writes through services only."""

from admission.admin import counters, permits, physical, runs, tenants, tokens

__all__ = ["counters", "permits", "physical", "runs", "tenants", "tokens"]
