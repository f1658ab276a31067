"""The named statements of liveness and recovery (T11-T15 of models/README-runs-leader.md).

Lock order: the replica's row comes before every row of the ledger (see admission/README.md). All times are the
database's; a process's own clock decides nothing here.
"""

from __future__ import annotations

from typing import Final

from admission.sql.blocks import BOUND_IDLE

# A living replica proves itself inside an admission. FOR KEY SHARE: admissions of one replica do not wait for each
# other or for its beat; a declaration of death (FOR UPDATE) waits for them, and they see it. 0 rows: declared dead, or
# draining. Index: primary key.
LOCK_DRIVER: Final = f"""
SELECT id, {BOUND_IDLE} FROM recovery_replica
WHERE id = %(replica)s AND declared_dead_at IS NULL AND draining_at IS NULL FOR KEY SHARE
"""

# T11. 0 rows: declared dead; final for this incarnation. A beat that comes after a gap notes when the gap began and
# ended: the sign that the database may have been away (rule R13). It also ends a hold: who beats is not silent.
# Index: primary key.
BEAT: Final = """
UPDATE recovery_replica SET beat_at = statement_timestamp(),
    gap_from = CASE WHEN beat_at < statement_timestamp() - make_interval(secs => %(gap_seconds)s)
                    THEN beat_at ELSE gap_from END,
    resumed_at = CASE WHEN beat_at < statement_timestamp() - make_interval(secs => %(gap_seconds)s)
                      THEN statement_timestamp() ELSE resumed_at END,
    held_until = NULL, held_why = ''
WHERE id = %(replica)s AND declared_dead_at IS NULL
RETURNING draining_at IS NOT NULL AS draining
"""

# One SELECT a tick covers everything recovery could have to do: incarnations gone stale or declared dead, expired or
# corrupt claims, due debts, debts whose run moved on, runs without a replica row; and what a hold is judged by. A
# healthy fleet is told by it alone, and nothing is written.
#  - dead: with what is known of each; `local`: a living replica on its machine can look at what it left.
#  - silent: for how long those silent for nearly the window have been so, the not yet stale among them included.
#  - witnessed: a living replica has beaten without a gap for the whole window, so the database was there all along.
#  - resumed: a living replica's beats came back within the window, or our own have not come back yet, and nobody,
#    alive or dead by now, was heard all through that gap. Who was heard all through it shows that the database was
#    there and one replica was late: a busy machine would otherwise have everyone held again and again.
#  - restarted: the server started within the window, or recovered from a crash (which keeps its start time, but
#    resets its statistics).
# No locks. Index: replica_beat (the table is small), run_driver, debt_due, run's primary key.
READ_SITUATION: Final = """
WITH clock AS (
    SELECT statement_timestamp() AS at, statement_timestamp() - make_interval(secs => %(stale_seconds)s) AS since
),
living AS (
    SELECT d.* FROM recovery_replica d, clock WHERE d.declared_dead_at IS NULL AND d.beat_at >= clock.since
),
gaps AS (
    SELECT d.id, coalesce(d.gap_from, '-infinity') AS began, d.resumed_at AS ended FROM recovery_replica d, clock
    WHERE d.declared_dead_at IS NULL AND d.resumed_at > clock.since
    UNION ALL
    SELECT d.id, d.beat_at, clock.at FROM recovery_replica d, clock
    WHERE d.declared_dead_at IS NULL AND d.id = %(self)s
      AND d.beat_at < clock.at - make_interval(secs => %(gap_seconds)s)
)
SELECT
    (SELECT coalesce(jsonb_agg(to_jsonb(found) ORDER BY found.id), '[]') FROM (
        SELECT d.id, d.name, d.incarnation, d.machine, d.boot_id, d.pid, d.pid_start, d.executor,
               d.declared_dead_at IS NOT NULL AS declared, d.beat_at < clock.since AS stale, d.beat_at AS silent_at,
               extract(epoch FROM clock.at - d.beat_at)::float8 AS silent_seconds,
               extract(epoch FROM d.held_until - clock.at)::float8 AS held_seconds, d.held_why,
               c.claimant,
               EXISTS (SELECT FROM living l WHERE l.machine = d.machine AND l.executor = d.executor) AS local
        FROM clock, recovery_replica d LEFT JOIN recovery_recoveryclaim c ON c.replica_id = d.id
        WHERE d.id <> %(self)s AND (d.declared_dead_at IS NOT NULL OR d.beat_at < clock.since)
        ORDER BY d.id LIMIT %(limit)s) found) AS dead,
    (SELECT count(*) FROM recovery_replica WHERE declared_dead_at IS NULL AND id <> %(self)s) AS peers,
    ARRAY(SELECT extract(epoch FROM clock.at - d.beat_at)::float8 FROM recovery_replica d, clock
          WHERE d.declared_dead_at IS NULL AND d.id <> %(self)s
            AND d.beat_at < clock.since + make_interval(secs => %(together_seconds)s)) AS silent,
    EXISTS (SELECT FROM living l, clock WHERE l.beat_at >= clock.at - make_interval(secs => %(gap_seconds)s)
            AND coalesce(l.resumed_at, l.started_at) <= clock.since) AS witnessed,
    EXISTS (SELECT FROM gaps g WHERE NOT EXISTS (
                SELECT FROM recovery_replica o WHERE o.id <> g.id AND coalesce(o.resumed_at, o.started_at) <= g.began
                AND o.beat_at >= g.ended - make_interval(secs => %(gap_seconds)s))) AS resumed,
    greatest(pg_postmaster_start_time(), (SELECT stats_reset FROM pg_stat_bgwriter))
        > (SELECT clock.since FROM clock) AS restarted,
    EXISTS (SELECT FROM recovery_replica d, clock WHERE d.declared_dead_at IS NULL AND d.id <> %(self)s
            AND d.beat_at >= clock.at - make_interval(secs => %(watch_seconds)s)) AS accompanied,
    (SELECT extract(epoch FROM clock.at - d.started_at)::float8 FROM recovery_replica d, clock
     WHERE d.id = %(self)s) AS own_age,
    EXISTS (SELECT FROM recovery_recoveryclaim c, clock
            WHERE c.claimed_at < clock.at - make_interval(secs => %(claim_ttl_seconds)s)
               OR c.claimed_at > clock.at + make_interval(secs => %(claim_ttl_seconds)s)
               OR c.claimant = '') AS expired,
    EXISTS (SELECT FROM recovery_recoverydebt b, clock WHERE b.closed_at IS NULL AND b.next_at <= clock.at) AS due,
    EXISTS (SELECT FROM recovery_recoverydebt b WHERE b.closed_at IS NULL AND NOT EXISTS (
                SELECT FROM admission_run r WHERE r.id = b.run_id AND r.epoch = b.epoch
                AND r.state IN ('admitted', 'running'))) AS moved,
    EXISTS (SELECT FROM admission_run r WHERE r.driver_kind = 'replica' AND r.state IN ('admitted', 'running')
            AND NOT EXISTS (SELECT FROM recovery_replica d WHERE d.id = r.driver_id)
            AND NOT EXISTS (SELECT FROM recovery_recoverydebt b WHERE b.closed_at IS NULL
                            AND b.run_id = r.id AND b.epoch = r.epoch)) AS ownerless
"""

# Hold these silent ones for one window (rule R13): once for each silence, for only a beat makes it null again.
# 0 rows for one: it beats again, is declared dead, or is held already. Index: primary key.
HOLD: Final = """
UPDATE recovery_replica
SET held_until = statement_timestamp() + make_interval(secs => %(stale_seconds)s), held_why = %(why)s
WHERE id = ANY(%(replicas)s) AND declared_dead_at IS NULL AND held_until IS NULL
  AND beat_at < statement_timestamp() - make_interval(secs => %(stale_seconds)s)
RETURNING id, name
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

# What may be the proof of death. `stale`: silent for the whole window, by the database's clock, and not held (judged
# again, for the hold may be newer than the scan). `unchanged`: the beat
# is still the one that was seen before its process was proven gone, or was watched for two intervals.
PROOFS: Final = {
    "stale": (
        "beat_at < statement_timestamp() - make_interval(secs => %(stale_seconds)s)"
        " AND coalesce(held_until <= statement_timestamp(), true)"
    ),
    "unchanged": "beat_at = %(seen)s",
}

# The claimant goes on working: its claim does not run out under it. 0 rows: somebody else's by now, stop.
RENEW_CLAIM: Final = """
UPDATE recovery_recoveryclaim SET claimed_at = statement_timestamp()
WHERE replica_id = %(replica)s AND claimant = %(claimant)s RETURNING replica_id
"""

# Open runs of a dead incarnation, a batch at a time, those that stand in a debt left out. Index: run_driver,
# debt_one_open.
READ_ORPHANS: Final = """
SELECT r.id, r.epoch, r.attempt, r.state FROM admission_run r
WHERE r.driver_kind = 'replica' AND r.driver_id = %(replica)s AND r.state IN ('admitted', 'running')
  AND r.id > %(after)s
  AND NOT EXISTS (SELECT FROM recovery_recoverydebt b
                  WHERE b.closed_at IS NULL AND b.run_id = r.id AND b.epoch = r.epoch)
ORDER BY r.id LIMIT %(limit)s
"""

# Open runs whose replica has no row any more (restored or legacy data) and that no debt keeps. Index: run_driver,
# debt_one_open.
READ_OWNERLESS: Final = """
SELECT r.id, r.epoch, r.attempt, r.state, r.driver_id, r.driver_name, r.driver_incarnation FROM admission_run r
WHERE r.driver_kind = 'replica' AND r.state IN ('admitted', 'running') AND r.id > %(after)s
  AND NOT EXISTS (SELECT FROM recovery_replica d WHERE d.id = r.driver_id)
  AND NOT EXISTS (SELECT FROM recovery_recoverydebt b
                  WHERE b.closed_at IS NULL AND b.run_id = r.id AND b.epoch = r.epoch)
ORDER BY r.id LIMIT %(limit)s
"""

# What became of holds that could not be taken: they ended, or had moved on. No locks. Index: primary key.
READ_MOVED: Final = """
SELECT r.id, r.epoch, r.state FROM admission_run r
JOIN unnest(%(runs)s::bigint[], %(epochs)s::bigint[]) AS a(id, epoch) ON a.id = r.id
WHERE r.epoch <> a.epoch OR r.state NOT IN ('admitted', 'running')
"""

# T13. The heartbeat row goes last: 0 rows while any run of it is open and stands in no debt. Its set only shrinks
# (admission locks the row), so emptiness stays true. The claim goes with it. Index: primary key, run_driver,
# debt_one_open.
FINISH: Final = """
DELETE FROM recovery_replica d
WHERE d.id = %(replica)s AND d.declared_dead_at IS NOT NULL
  AND NOT EXISTS (SELECT FROM admission_run r WHERE r.driver_kind = 'replica' AND r.driver_id = d.id
                  AND r.state IN ('admitted', 'running')
                  AND NOT EXISTS (SELECT FROM recovery_recoverydebt b
                                  WHERE b.closed_at IS NULL AND b.run_id = r.id AND b.epoch = r.epoch))
RETURNING d.id
"""
DROP_CLAIM: Final = """
DELETE FROM recovery_recoveryclaim WHERE replica_id = %(replica)s AND claimant = %(claimant)s RETURNING replica_id
"""

# T14. Only a claim that is still past its time to live, or corrupt: a time from the future, nobody as its owner. The
# predicate is on the claim's own row, so a renewal that was waited for keeps it. Few rows: no index.
EXPIRE_CLAIMS: Final = """
DELETE FROM recovery_recoveryclaim
WHERE claimed_at < statement_timestamp() - make_interval(secs => %(claim_ttl_seconds)s)
   OR claimed_at > statement_timestamp() + make_interval(secs => %(claim_ttl_seconds)s)
   OR claimant = ''
RETURNING replica_id
"""

# What became of many runs, in one statement: rows by the ORM cost more than taking the runs does. No locks.
NOTE_RUNS: Final = """
INSERT INTO recovery_recoveryaction (at, by, replica_name, run_id, epoch, outcome, reason)
SELECT statement_timestamp(), %(by)s, %(replica)s, a.run, a.epoch, %(outcome)s, a.reason
FROM unnest(%(runs)s::bigint[], %(epochs)s::bigint[], %(reasons)s::text[]) AS a(run, epoch, reason)
"""

# Something left alone, said once an hour and not at every tick. 0 rows: said already. Index: action_replica.
NOTE_LEFT_ALONE: Final = """
INSERT INTO recovery_recoveryaction (at, by, replica_name, outcome, reason)
SELECT statement_timestamp(), %(by)s::text, %(replica)s::text, 'left_alone', %(why)s::text
WHERE NOT EXISTS (
    SELECT FROM recovery_recoveryaction a
    WHERE a.replica_name = %(replica)s::text AND a.outcome = 'left_alone' AND a.reason = %(why)s::text
      AND a.at > statement_timestamp() - interval '1 hour')
RETURNING id
"""

# Debts. Opening one is put-if-absent; a run that moved on meanwhile is not owed. Index: debt_one_open, primary key.
OPEN_DEBTS: Final = """
INSERT INTO recovery_recoverydebt
    (run_id, epoch, replica_name, machine, dead, silent_at, reason, next_at, opened_at, tried_at)
SELECT r.id, r.epoch, %(name)s::text, %(machine)s::text, %(dead)s::jsonb,
       coalesce(%(silent_at)s::timestamptz, statement_timestamp()), a.reason,
       statement_timestamp() + make_interval(secs => %(wait_seconds)s), statement_timestamp(), statement_timestamp()
FROM unnest(%(runs)s::bigint[], %(epochs)s::bigint[], %(reasons)s::text[]) AS a(id, epoch, reason)
JOIN admission_run r ON r.id = a.id AND r.epoch = a.epoch AND r.state IN ('admitted', 'running')
ON CONFLICT (run_id, epoch) WHERE closed_at IS NULL DO NOTHING
RETURNING id, run_id, epoch, reason
"""
# Take due debts to look at: `next_at` moves forward in this statement, so each is one process's, and a process that
# dies with it is succeeded when that time comes. Doubling waits, at most an hour. Debts of a machine on which a living
# replica of that kind can look are left to it. Locks: debts, skipping those being taken.
# Index: debt_due, replica_beat, run's primary key.
TAKE_DUE: Final = """
WITH due AS (
    SELECT b.id, b.run_id FROM recovery_recoverydebt b
    WHERE b.closed_at IS NULL AND b.next_at <= statement_timestamp()
      AND (b.machine = %(machine)s OR NOT EXISTS (
          SELECT FROM recovery_replica d
          WHERE d.machine = b.machine AND d.executor = b.dead ->> 'executor' AND d.declared_dead_at IS NULL
            AND d.beat_at >= statement_timestamp() - make_interval(secs => %(stale_seconds)s)))
    ORDER BY b.next_at LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE recovery_recoverydebt b
SET tried_at = statement_timestamp(), attempts = b.attempts + 1,
    next_at = statement_timestamp() + make_interval(
        secs => least(%(wait_seconds)s * power(2, least(b.attempts, 16)), %(longest_seconds)s))
FROM due d LEFT JOIN admission_run r ON r.id = d.run_id WHERE b.id = d.id AND b.closed_at IS NULL
RETURNING b.id, b.run_id, b.epoch, b.dead, r.attempt, r.state
"""
# Why it could not be decided this time; past the limit of attempts it is escalated, once. Index: primary key.
KEEP_DEBTS: Final = """
UPDATE recovery_recoverydebt b
SET reason = a.reason,
    escalated_at = CASE WHEN b.attempts >= %(escalate_after)s THEN coalesce(b.escalated_at, statement_timestamp()) END
FROM unnest(%(debts)s::bigint[], %(reasons)s::text[]) AS a(id, reason)
WHERE b.id = a.id AND b.closed_at IS NULL
RETURNING b.id, b.run_id, b.epoch, b.replica_name, b.reason, b.attempts,
          b.escalated_at = statement_timestamp() AS escalated_now
"""
# A debt is paid only when its epoch is over, by whomsoever: ended, taken, adopted. Index: debt_due, run's primary key.
CLOSE_DEBTS: Final = """
UPDATE recovery_recoverydebt b SET closed_at = statement_timestamp(), closed_as = %(outcome)s
WHERE b.closed_at IS NULL AND NOT EXISTS (
    SELECT FROM admission_run r WHERE r.id = b.run_id AND r.epoch = b.epoch AND r.state IN ('admitted', 'running'))
  AND (%(debts)s::bigint[] IS NULL OR b.id = ANY(%(debts)s::bigint[]))
RETURNING b.id, b.run_id, b.epoch, b.replica_name
"""
# Index: primary key. 0 rows: it is closed.
RETRY_DEBT: Final = """
UPDATE recovery_recoverydebt SET next_at = statement_timestamp()
WHERE id = %(debt)s AND closed_at IS NULL RETURNING id
"""
# What is told of once for each run: debts that operators have to know of. Index: debt_due.
READ_ESCALATED: Final = """
SELECT b.run_id AS id, t.slug AS tenant, 'recovery_debt' AS why, b.replica_name AS driver_name,
       extract(epoch FROM statement_timestamp() - b.opened_at)::float8 AS seconds
FROM recovery_recoverydebt b JOIN admission_run r ON r.id = b.run_id JOIN admission_tenant t ON t.id = r.tenant_id
WHERE b.closed_at IS NULL AND b.escalated_at IS NOT NULL ORDER BY b.id LIMIT %(limit)s
"""

# Retention: closed debts and old actions, a batch at a time. Index: debt_closed, action_at.
DELETE_DEBTS: Final = """
DELETE FROM recovery_recoverydebt WHERE id IN (
    SELECT id FROM recovery_recoverydebt
    WHERE closed_at < statement_timestamp() - make_interval(secs => %(age)s) LIMIT %(limit)s)
"""
DELETE_ACTIONS: Final = """
DELETE FROM recovery_recoveryaction WHERE id IN (
    SELECT id FROM recovery_recoveryaction
    WHERE at < statement_timestamp() - make_interval(secs => %(age)s) LIMIT %(limit)s)
"""

# How recovery stands, for the fleet page, REST and metrics. Index: debt_due, replica_beat, loop_place.
READ_STANDING: Final = """
SELECT (SELECT count(*) FROM recovery_recoverydebt WHERE closed_at IS NULL) AS open_debts,
       (SELECT count(*) FROM recovery_recoverydebt WHERE closed_at IS NULL AND escalated_at IS NOT NULL) AS escalated,
       (SELECT count(*) FROM recovery_replica
        WHERE declared_dead_at IS NULL AND held_until > statement_timestamp()) AS held,
       (SELECT max(held_until) FROM recovery_replica
        WHERE declared_dead_at IS NULL AND held_until > statement_timestamp()) AS held_until,
       (SELECT count(*) FROM recovery_recoveryclaim) AS claims,
       (SELECT max(last_at) FROM leadership_loopseen WHERE loop = 'reconcile' AND place <> '') AS last_pass_at,
       (SELECT extract(epoch FROM statement_timestamp() - max(last_at))::float8
        FROM leadership_loopseen WHERE loop = 'reconcile' AND place <> '') AS last_pass_age
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
# No row: it was deleted, or never was in this database. A snapshot that shows a run under this epoch shows the row
# that its admission had locked, unless that is gone for good (ids are not used again): a replica that registers
# meanwhile is never meant.
DRIVER_ABSENT: Final = (
    "r.driver_kind = 'replica' AND NOT EXISTS (SELECT FROM recovery_replica d WHERE d.id = r.driver_id)"
)
# A debt that is looked at again. No living driver, and under strict fencing the window since its last beat is over.
DEBT_DUE: Final = (
    "r.driver_kind = 'replica'"
    " AND NOT EXISTS (SELECT FROM recovery_replica d WHERE d.id = r.driver_id AND d.declared_dead_at IS NULL)"
    " AND EXISTS (SELECT FROM recovery_recoverydebt b WHERE b.closed_at IS NULL AND b.run_id = r.id"
    " AND b.epoch = r.epoch AND b.silent_at < statement_timestamp() - make_interval(secs => %(window_seconds)s))"
)

# Why a run is adopted: the driver that left it was declared dead, which is final, or its row is gone even.
DRIVER_GONE: Final = (
    "r.driver_kind = 'replica' AND r.driver_id = %(dead)s AND NOT EXISTS ("
    "SELECT FROM recovery_replica d WHERE d.id = r.driver_id AND d.declared_dead_at IS NULL)"
)

# A replica that adopts lives, and may not be declared dead before its adoptions committed: then they are seen. Unlike
# LOCK_DRIVER also while it drains: what it adopts is executed anyway. 0 rows: declared dead. Index: primary key.
LOCK_ADOPTER: Final = """
SELECT id FROM recovery_replica WHERE id = %(replica)s AND declared_dead_at IS NULL FOR KEY SHARE
"""

# What a dead replica drove and had not made itself, and now nobody drives: it had adopted it. Index: run_driver,
# attempt_number.
READ_HEIRLOOMS: Final = """
SELECT r.id, r.attempt, t.maker FROM admission_run r
JOIN admission_attempt t ON t.run_id = r.id AND t.number = r.attempt
WHERE r.driver_kind = 'replica' AND r.driver_id = %(dead)s AND r.state = 'running' AND t.maker <> %(incarnation)s
"""

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
