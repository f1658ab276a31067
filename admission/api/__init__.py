"""REST of the ledger: runs, batches, tenants and their quotas, permits. Every write goes through a service."""
