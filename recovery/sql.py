"""The named statements of liveness and recovery (T11-T15 of models/README-runs-leader.md).

Lock order: the replica's row comes before every row of the ledger (see admission/README.md). All times are the
database's; a process's own clock decides nothing here.
"""

from __future__ import annotations

from typing import Final

# A living replica proves itself inside an admission. FOR KEY SHARE: admissions of one replica do not wait for each
# other or for its beat; a declaration of death (FOR UPDATE) waits for them, and they see it. 0 rows: declared dead, or
# draining. Index: primary key.
LOCK_DRIVER: Final = """
SELECT id FROM recovery_replica
WHERE id = %(replica)s AND declared_dead_at IS NULL AND draining_at IS NULL FOR KEY SHARE
"""

# T11. 0 rows: declared dead; final for this incarnation. Index: primary key.
BEAT: Final = """
UPDATE recovery_replica SET beat_at = statement_timestamp()
WHERE id = %(replica)s AND declared_dead_at IS NULL
RETURNING draining_at IS NOT NULL AS draining
"""

# One SELECT a tick covers everything recovery could have to do: incarnations gone stale or declared dead that nobody
# claims (or whose claim ran out), with their open runs counted. A healthy fleet gets no row, and nothing is written.
# Index: replica_beat (the table is small), run_driver.
READ_SITUATION: Final = """
SELECT d.id, d.name, d.incarnation, d.machine, d.boot_id, d.pid, d.pid_start, d.executor,
       d.declared_dead_at IS NOT NULL AS declared_dead,
       d.beat_at < statement_timestamp() - make_interval(secs => %(stale_seconds)s) AS stale,
       extract(epoch FROM statement_timestamp() - d.beat_at)::float8 AS silent_seconds,
       c.claimant,
       coalesce(c.claimed_at < statement_timestamp() - make_interval(secs => %(claim_ttl_seconds)s), false) AS expired
FROM recovery_replica d LEFT JOIN recovery_recoveryclaim c ON c.replica_id = d.id
WHERE d.id <> %(self)s
  AND (d.declared_dead_at IS NOT NULL
       OR d.beat_at < statement_timestamp() - make_interval(secs => %(stale_seconds)s))
ORDER BY d.id LIMIT %(limit)s
"""

# T12, in one transaction: first the claim, put-if-absent (0 rows: somebody else's, touch nothing), then the
# declaration, which judges the silence again under the row lock (0 rows: it lives, roll back).
CLAIM_DEAD: Final = """
INSERT INTO recovery_recoveryclaim (replica_id, claimant, claimed_at)
VALUES (%(replica)s, %(claimant)s, statement_timestamp())
ON CONFLICT (replica_id) DO NOTHING RETURNING replica_id
"""
DECLARE_DEAD: Final = """
WITH silent AS (
    SELECT id, declared_dead_at FROM recovery_replica
    WHERE id = %(replica)s
      AND (declared_dead_at IS NOT NULL OR ({proof}))
    FOR UPDATE
)
UPDATE recovery_replica d SET declared_dead_at = coalesce(d.declared_dead_at, statement_timestamp())
FROM silent s WHERE d.id = s.id RETURNING d.id
"""

# What may be the proof of death. `stale`: silent for the whole window, by the database's clock. `unchanged`: the beat
# is still the one that was seen before its process was proven gone, or was watched for two intervals.
PROOFS: Final = {
    "stale": "beat_at < statement_timestamp() - make_interval(secs => %(stale_seconds)s)",
    "unchanged": "beat_at = %(seen)s",
}

# The claimant goes on working: its claim does not run out under it. 0 rows: somebody else's by now, stop.
RENEW_CLAIM: Final = """
UPDATE recovery_recoveryclaim SET claimed_at = statement_timestamp()
WHERE replica_id = %(replica)s AND claimant = %(claimant)s RETURNING replica_id
"""

# Open runs of a dead incarnation, a batch at a time. Index: run_driver.
READ_ORPHANS: Final = """
SELECT id, epoch, state FROM admission_run
WHERE driver_kind = 'replica' AND driver_id = %(replica)s AND state IN ('admitted', 'running') AND id > %(after)s
ORDER BY id LIMIT %(limit)s
"""

# Open runs whose replica has no row any more (restored or legacy data). Index: run_driver.
READ_OWNERLESS: Final = """
SELECT r.id, r.epoch, r.state FROM admission_run r
WHERE r.driver_kind = 'replica' AND r.state IN ('admitted', 'running')
  AND NOT EXISTS (SELECT FROM recovery_replica d WHERE d.id = r.driver_id)
ORDER BY r.id LIMIT %(limit)s
"""

# T13. The heartbeat row goes last: 0 rows while any run of it is open. Its set only shrinks (admission locks the row),
# so emptiness stays true. The claim goes with it.
FINISH: Final = """
DELETE FROM recovery_replica d
WHERE d.id = %(replica)s AND d.declared_dead_at IS NOT NULL
  AND NOT EXISTS (SELECT FROM admission_run r WHERE r.driver_kind = 'replica' AND r.driver_id = d.id
                  AND r.state IN ('admitted', 'running'))
RETURNING d.id
"""
DROP_CLAIM: Final = """
DELETE FROM recovery_recoveryclaim WHERE replica_id = %(replica)s AND claimant = %(claimant)s RETURNING replica_id
"""

# T14. Only a claim that is still past its time to live.
EXPIRE_CLAIMS: Final = """
DELETE FROM recovery_recoveryclaim
WHERE claimed_at < statement_timestamp() - make_interval(secs => %(claim_ttl_seconds)s)
   OR claimed_at > statement_timestamp() + make_interval(secs => %(claim_ttl_seconds)s)
RETURNING replica_id
"""

# The causes that recovery may give for taking a run, judged again on the run's row.
DRIVER_DEAD: Final = (
    "r.driver_kind = 'replica' AND EXISTS ("
    "SELECT FROM recovery_replica d WHERE d.id = r.driver_id AND d.declared_dead_at IS NOT NULL)"
)
# Under strict fencing. A declaration may come before the end of what the dead one executes (same pinned id, goodbye
# with work left): its runs are taken only when its silence has lasted for the whole window.
DRIVER_DEAD_FENCED: Final = (
    "r.driver_kind = 'replica' AND EXISTS ("
    "SELECT FROM recovery_replica d WHERE d.id = r.driver_id AND d.declared_dead_at IS NOT NULL"
    " AND d.beat_at < statement_timestamp() - make_interval(secs => %(stale_seconds)s))"
)
DRIVER_ABSENT: Final = (
    "r.driver_kind = 'replica' AND NOT EXISTS (SELECT FROM recovery_replica d WHERE d.id = r.driver_id)"
)

# Replicas as others see them, those heard last, with how many slots each has in use, and what its machine had by the
# newest fresh sample (none: all of the envelope). No locks. Index: replica_beat, run_driver, probe_machine.
READ_FACTS: Final = """
SELECT d.id, d.name, d.executor, d.slots, d.memory_mib, d.cpu, d.draining_at IS NOT NULL AS draining,
       extract(epoch FROM statement_timestamp() - d.beat_at)::float8 AS heard,
       d.declared_dead_at IS NULL
           AND d.beat_at >= statement_timestamp() - make_interval(secs => %(stale_seconds)s) AS live,
       d.declared_dead_at IS NOT NULL AS gone,
       (SELECT count(*) FROM admission_run r WHERE r.driver_kind = 'replica' AND r.driver_id = d.id
            AND r.state IN ('admitted', 'running'))::int AS held,
       coalesce(s.memory_mib_used, d.memory_mib) AS memory_used, coalesce(s.cpu_used, d.cpu) AS cpu_used
FROM recovery_replica d
LEFT JOIN LATERAL (
    SELECT p.memory_mib_used, p.cpu_used FROM admission_probe p
    WHERE p.machine = d.machine AND p.sampled_at >= statement_timestamp() - make_interval(secs => %(age)s)
    ORDER BY p.sampled_at DESC LIMIT 1) s ON true
ORDER BY d.beat_at DESC LIMIT %(limit)s
"""
