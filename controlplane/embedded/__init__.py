"""PostgreSQL and Valkey from PyPI wheels, for `up` without `DATABASE_URL` / `REDIS_URL`. Plain Python: no Django."""

from controlplane.embedded.directories import EmbeddedError, Home
from controlplane.embedded.postgres import EmbeddedPostgres
from controlplane.embedded.valkey import EmbeddedValkey

__all__ = ["EmbeddedError", "EmbeddedPostgres", "EmbeddedValkey", "Home"]
