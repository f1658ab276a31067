"""The named statements of the ledger. Correct under READ COMMITTED; every predicate that decides stands in the writing
statement itself, so it is judged again on the newest row version after a lock wait.

Lock order, the same everywhere (models/README-runs-leader.md): request id, driver row, tenant row, run rows by id,
permit rows, counter rows by (scope, key). See README.md.
"""
