"""Named statements of secrets and artifacts.

Lock order: a reservation locks its attempt's row, then artifact rows; the sweeps lock artifact rows only.
"""

from __future__ import annotations

from typing import Final

# A secret's new value; the earlier one is kept for masking. Locks: the tenant's row (foreign key), the secret's row.
# Index: secret_name.
STORE_SEALED: Final = """
INSERT INTO runners_secret (tenant_id, name, value, updated_by)
VALUES (%(tenant_id)s, %(name)s, %(value)s, %(updated_by)s)
ON CONFLICT (tenant_id, name) DO UPDATE
SET value = EXCLUDED.value, previous = runners_secret.value, updated_at = statement_timestamp(),
    updated_by = EXCLUDED.updated_by
RETURNING (xmax = 0) AS created
"""

# Which of these secrets are there. No locks. Index: secret_name.
READ_SEALED_NAMES: Final = """
SELECT s.tenant_id, s.name FROM unnest(%(tenants)s::bigint[], %(names)s::text[]) AS a(tenant_id, name)
JOIN runners_secret s ON s.tenant_id = a.tenant_id AND s.name = a.name
"""

# What these holds of this driver are to be given: one row for each secret that they name, `value` null where it is not
# there any more. Judged by the run row: for nobody but the present holder, and not after the end. No locks. 0 rows:
# none of them names a secret, or is held. Index: primary key, secret_name.
READ_HELD_SECRETS: Final = """
SELECT r.id AS run, r.epoch, r.tenant_id, n.name, s.value
FROM unnest(%(runs)s::bigint[], %(epochs)s::bigint[]) AS a(run, epoch)
JOIN admission_run r ON r.id = a.run AND r.epoch = a.epoch AND r.state IN ('admitted', 'running')
     AND r.driver_kind = %(driver_kind)s AND r.driver_id = %(driver_id)s
CROSS JOIN LATERAL (
    SELECT jsonb_array_elements_text(
        CASE WHEN jsonb_typeof(r.spec -> 'secrets') = 'array' THEN r.spec -> 'secrets' ELSE '[]'::jsonb END)
    UNION SELECT r.spec ->> 'registry_secret' WHERE jsonb_typeof(r.spec -> 'registry_secret') = 'string') AS n(name)
LEFT JOIN runners_secret s ON s.tenant_id = r.tenant_id AND s.name = n.name
"""

# What must not be seen in the output of a run: the values it names, as they are and as they were before. No locks.
# 0 rows: nothing to hide. Index: primary key, secret_name.
READ_HIDDEN: Final = """
SELECT r.tenant_id, s.name, s.value, s.previous,
       coalesce(r.spec ->> 'registry_secret' = s.name, false) AS for_registry
FROM admission_run r
CROSS JOIN LATERAL (
    SELECT jsonb_array_elements_text(
        CASE WHEN jsonb_typeof(r.spec -> 'secrets') = 'array' THEN r.spec -> 'secrets' ELSE '[]'::jsonb END)
    UNION SELECT r.spec ->> 'registry_secret' WHERE jsonb_typeof(r.spec -> 'registry_secret') = 'string') AS n(name)
JOIN runners_secret s ON s.tenant_id = r.tenant_id AND s.name = n.name
WHERE r.id = %(run)s
"""

# The chunks that lie in a piece of one log, for masking across their border. The attempt's row is locked by the append
# in the same transaction, so none is written meanwhile. Index: logchunk_position.
READ_CHUNKS_AROUND: Final = """
SELECT start, data FROM runners_logchunk
WHERE run_id = %(run)s AND attempt = %(attempt)s AND start < %(stop)s
  AND start >= coalesce((SELECT max(start) FROM runners_logchunk
                         WHERE run_id = %(run)s AND attempt = %(attempt)s AND start <= %(first)s), 0)
ORDER BY start
"""
REWRITE_CHUNK: Final = """
UPDATE runners_logchunk SET data = %(data)s
WHERE run_id = %(run)s AND attempt = %(attempt)s AND start = %(start)s
"""

# May this driver store artifacts of this hold? It holds the run, or reported the end of this attempt not longer ago
# than the window; who had the run taken away reported no end. Locks the attempt's row: reservations of one attempt
# come one after the other, so that their sum is exact. 0 rows: superseded. Index: attempt_number.
LOCK_KEEPER: Final = """
SELECT t.number AS attempt, r.tenant_id FROM admission_attempt t JOIN admission_run r ON r.id = t.run_id
WHERE t.run_id = %(run)s AND t.driver_kind = %(driver_kind)s AND t.driver_id = %(driver_id)s AND (
    (t.released_at IS NULL AND t.number = r.attempt AND r.epoch = %(epoch)s AND r.state IN ('admitted', 'running'))
    OR (t.epoch = %(epoch)s AND t.ending IN ('succeeded', 'failed', 'timed_out', 'cancelled')
        AND t.released_at > statement_timestamp() - make_interval(secs => %(window_seconds)s)))
ORDER BY t.number DESC LIMIT 1
FOR NO KEY UPDATE OF t
"""

# What this attempt keeps already, after its row was locked, in a statement of its own (a newer snapshot).
READ_KEPT: Final = """
SELECT count(*) AS files, coalesce(sum(size), 0)::bigint AS bytes FROM runners_artifact
WHERE run_id = %(run)s AND attempt = %(attempt)s AND doomed_at IS NULL
"""
READ_KEPT_NAME: Final = """
SELECT id, size, sha256, stored_at IS NOT NULL AS stored FROM runners_artifact
WHERE run_id = %(run)s AND attempt = %(attempt)s AND name = %(name)s AND doomed_at IS NULL
"""
RESERVE_ARTIFACT: Final = """
INSERT INTO runners_artifact (run_id, attempt, name, key, size, sha256, content_type)
VALUES (%(run)s, %(attempt)s, %(name)s, %(key)s, %(size)s, %(sha256)s, %(content_type)s)
RETURNING id
"""

# The bytes are in the storage. 0 rows: it was given up meanwhile, and the bytes are to be deleted.
CONFIRM_ARTIFACT: Final = """
UPDATE runners_artifact SET stored_at = statement_timestamp() WHERE id = %(id)s AND doomed_at IS NULL
"""
DOOM_ARTIFACT: Final = "UPDATE runners_artifact SET doomed_at = statement_timestamp() WHERE id = %(id)s"

# Uploads that broke off. Bounded. Index: artifact_open.
DOOM_UNFINISHED: Final = """
UPDATE runners_artifact SET doomed_at = statement_timestamp() WHERE id IN (
    SELECT id FROM runners_artifact
    WHERE stored_at IS NULL AND doomed_at IS NULL
      AND reserved_at < statement_timestamp() - make_interval(secs => %(age)s)
    ORDER BY reserved_at LIMIT %(limit)s)
"""

# Artifacts of runs that ended long ago (those of a deleted run are doomed with it). Looks at a bounded piece of the
# table, oldest first: `last` is where the next call goes on, `reached` says that younger ones begin. Index: primary
# keys.
DOOM_OLD: Final = """
WITH looked AS (
    SELECT id, run_id, reserved_at < statement_timestamp() - make_interval(secs => %(age)s) AS old
    FROM runners_artifact WHERE id > %(after)s ORDER BY id LIMIT %(limit)s
),
due AS (
    SELECT l.id FROM looked l JOIN admission_run r ON r.id = l.run_id
    WHERE l.old AND r.finished_at < statement_timestamp() - make_interval(secs => %(age)s)
),
doomed AS (
    UPDATE runners_artifact SET doomed_at = statement_timestamp()
    WHERE id IN (SELECT id FROM due) AND doomed_at IS NULL RETURNING id
)
SELECT (SELECT count(*) FROM doomed) AS doomed, max(id) AS last, coalesce(bool_or(NOT old), true) AS reached
FROM looked
"""

# What is to be deleted from the storage. Not at once: an upload that was given up under way deletes what it stored,
# and one that was stopped between storing and that look is met here. No locks: two sweeps delete the same bytes twice.
READ_DOOMED: Final = """
SELECT id, key FROM runners_artifact
WHERE doomed_at < statement_timestamp() - make_interval(secs => %(age)s) ORDER BY doomed_at, id LIMIT %(limit)s
"""
FORGET_ARTIFACTS: Final = "DELETE FROM runners_artifact WHERE id = ANY(%(ids)s)"
