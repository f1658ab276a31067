"""Named statements of runners, their claims and the logs.

Lock order: the runner's row, then as in `admission.sql` (runs, attempts, permits, counters). A log append locks its
attempt's row only.
"""

from __future__ import annotations

from typing import Final

from admission.sql.admitting import admit_runs
from admission.sql.blocks import BOUND_IDLE

# A runner of one job has had it once it holds nothing any more: it drains.
DRAINS: Final = """(r.draining_at IS NOT NULL OR (r.spent_at IS NOT NULL AND NOT EXISTS (
           SELECT FROM admission_run h WHERE h.driver_kind = 'runner' AND h.driver_id = r.id
               AND h.state IN ('admitted', 'running'))))"""

# Whose token has the hash `w.hash`: as the current one, or as the one before it. Two probes of two indexes: a join on
# either of them would compare every runner with every hash.
BY_HASH: Final = """
    SELECT * FROM runners_runner n WHERE n.hash = w.hash AND n.revoked_at IS NULL
    UNION ALL
    SELECT * FROM runners_runner o
    WHERE o.old_hash = w.hash AND o.old_until > statement_timestamp() AND o.revoked_at IS NULL"""

MAY_CLAIM: Final = """r.revoked_at IS NULL AND r.draining_at IS NULL AND r.paused_at IS NULL
        AND r.spent_at IS NULL"""

OPENS: Final = """(%(token)s::bytea IS NULL OR r.hash = %(token)s
        OR (r.old_hash = %(token)s AND r.old_until > statement_timestamp()))"""

# Who calls, and which of its runs it is asked to cancel: every answer carries them. One look-up by the tokens' hashes,
# or by those of the tokens before them, while a rotation lets both open. No locks. A hash without a row: unknown,
# outlived or revoked. Index: unique hash, unique old hash, run_driver.
# `quiet`: the last contact is old enough to be written again. `first`: the new token of a rotation is used for the
# first time, so the old one is to end.
# The hashes stand in a SELECT so that no plan is made for their number: a prepared statement would be planned anew at
# every call because of it, and planning this one takes thirty times as long as executing it.
FIND_RUNNERS: Final = f"""
SELECT w.hash, r.id, r.name, r.tenant_id, r.labels, r.trust_labels, r.executors, r.slots, r.shown, r.one_job,
       r.paused_at IS NOT NULL AS paused, {DRAINS} AS draining, r.spent_at IS NOT NULL AS spent,
       r.old_hash IS NOT NULL AND r.hash = w.hash AS first,
       (r.contact_at IS NULL OR r.contact_at < statement_timestamp() - make_interval(secs => %(resolution)s)) AS quiet,
       ARRAY(SELECT ARRAY[h.id, h.epoch] FROM admission_run h
             WHERE h.driver_kind = 'runner' AND h.driver_id = r.id AND h.state IN ('admitted', 'running')
               AND h.cancel_requested_at IS NOT NULL ORDER BY h.id) AS cancels
FROM unnest((SELECT %(hashes)s::bytea[])) AS w(hash) CROSS JOIN LATERAL ({BY_HASH}) r
"""

# The new token arrived: the old one is dead from the next call on. Judged by the hash again: a rotation meanwhile
# has another new token, and this one is then the old one. Lock: the whole row, for hashes are unique: it waits for an
# admission under way.
END_OVERLAP: Final = """
UPDATE runners_runner SET old_hash = NULL, old_until = NULL
WHERE id = %(runner)s AND hash = %(hash)s AND old_hash IS NOT NULL
"""

# A new token beside the one that was used last: that is the current one, or the old one where the answer to an
# earlier rotation was lost and its token never used. 0 rows: unknown or revoked. Lock: as END_OVERLAP.
ROTATE: Final = """
UPDATE runners_runner
SET old_hash = CASE WHEN %(used)s::bytea IS NOT NULL AND old_hash = %(used)s AND old_until > statement_timestamp()
                    THEN old_hash ELSE hash END,
    old_until = statement_timestamp() + make_interval(secs => %(overlap)s),
    hash = %(hash)s, shown = %(shown)s, rotated_at = statement_timestamp()
WHERE id = %(runner)s AND revoked_at IS NULL
  AND (%(used)s::bytea IS NULL OR hash = %(used)s OR (old_hash = %(used)s AND old_until > statement_timestamp()))
RETURNING id, name, shown, old_until
"""

# That these called; the predicate keeps many calls at once from writing it many times. Lock: the rows, not their keys,
# in order; a row that somebody holds is left out, its contact is noted by the next call.
NOTE_CONTACTS: Final = """
WITH due AS (
    SELECT id FROM runners_runner WHERE id = ANY(%(runners)s)
      AND (contact_at IS NULL OR contact_at < statement_timestamp() - make_interval(secs => %(resolution)s))
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE runners_runner r SET contact_at = statement_timestamp() FROM due d WHERE r.id = d.id
"""

# Of the runners with an open poll, those that must hear of something: the token is dead, the mode is another than the
# one they were told, a run of theirs is to be cancelled. No locks. Index: unique hash, unique old hash, run_driver.
READ_CONCERNED: Final = f"""
SELECT w.hash
FROM unnest((SELECT %(hashes)s::bytea[]), (SELECT %(modes)s::text[])) AS w(hash, mode)
LEFT JOIN LATERAL ({BY_HASH}) r ON true
WHERE r.id IS NULL
   OR w.mode <> CASE WHEN {DRAINS} THEN 'draining' WHEN r.paused_at IS NOT NULL THEN 'paused'
                ELSE 'active' END
   OR EXISTS (SELECT FROM admission_run h
              WHERE h.driver_kind = 'runner' AND h.driver_id = r.id AND h.state IN ('admitted', 'running')
                AND h.cancel_requested_at IS NOT NULL)
"""

# Of these claims, those that have an answer already. No locks. Index: claim_request_id.
READ_ANSWERED: Final = """
SELECT a.runner, a.request_id FROM unnest(%(runners)s::bigint[], %(request_ids)s::text[]) AS a(runner, request_id)
WHERE EXISTS (SELECT FROM runners_claimrequest c WHERE c.runner_id = a.runner AND c.request_id = a.request_id)
"""

# For pause, drain and revoke: waits for every admission under way.
LOCK_RUNNER_ALONE: Final = """
SELECT id, name, revoked_at, draining_at, drain_own, paused_at, pause_own, resume_at <= statement_timestamp() AS due
FROM runners_runner WHERE id = %(runner)s FOR UPDATE
"""

# Runners whose pause is over. No locks. Index: runner_resume.
READ_PAUSES_OVER: Final = """
SELECT id FROM runners_runner WHERE resume_at <= statement_timestamp() ORDER BY resume_at LIMIT %(limit)s
"""

# One use of an enrolment token. 0 rows: unknown, used up or expired. Lock: the token's row. Index: unique hash.
USE_ENROLMENT: Final = """
UPDATE runners_enrolmenttoken SET uses_left = uses_left - 1
WHERE hash = %(hash)s AND uses_left > 0 AND expires_at > statement_timestamp()
RETURNING id, shown, tenant_id, trust_labels, runner_id, one_job
"""

# The claim is reserved before anything is admitted for it: a repeat of the same request, also one at the same instant
# on another connection, waits here for the first one's commit and then reserves nothing. `reserved` false: answered,
# read it.
# Then: may this runner be given work? Its lock is held to the end of the admitting transaction: pausing, draining and
# revoking lock the row FOR UPDATE, so they wait for admissions under way and no later one gets past them. Of two
# claims at once for a runner of one job the second waits, and then finds it spent. `active` false: it may not.
# `token`, of a claim that waited, is judged again here, where a rotation, and the end of its overlap, wait for this
# lock or are seen: else a poll that was opened with a token that has died since would be given a run and its secrets.
RESERVE_CLAIM: Final = f"""
WITH reserved AS (
    INSERT INTO runners_claimrequest (runner_id, request_id, runs) VALUES (%(runner)s, %(request_id)s, '[]')
    ON CONFLICT (runner_id, request_id) DO NOTHING
    RETURNING runner_id
),
any_job AS (
    SELECT r.id FROM reserved c JOIN runners_runner r ON r.id = c.runner_id
    WHERE {MAY_CLAIM} AND {OPENS} AND NOT r.one_job
    FOR KEY SHARE OF r
),
one_job AS (
    SELECT r.id FROM reserved c JOIN runners_runner r ON r.id = c.runner_id
    WHERE {MAY_CLAIM} AND {OPENS} AND r.one_job
    FOR NO KEY UPDATE OF r
)
SELECT EXISTS (SELECT FROM reserved) AS reserved,
       EXISTS (SELECT FROM any_job) OR EXISTS (SELECT FROM one_job) AS active, {BOUND_IDLE}
"""

# Admit for a claim, and store its answer. What is stored is a claim that got something: a runner of one job had it.
CLAIM_RUNS: Final = admit_runs("""
, stored AS (
    UPDATE runners_claimrequest
    SET runs = (SELECT jsonb_agg(jsonb_build_object('run', id, 'epoch', epoch)) FROM admitted)
    WHERE runner_id = %(driver_id)s AND request_id = %(request_id)s
),
spent AS (
    UPDATE runners_runner SET spent_at = statement_timestamp()
    WHERE id = %(driver_id)s AND one_job AND spent_at IS NULL
)""")

# A claim that found nothing is no answer worth keeping: asked again, it may find something.
FORGET_CLAIM: Final = """
DELETE FROM runners_claimrequest WHERE runner_id = %(runner)s AND request_id = %(request_id)s
"""

# The stored answer, without what has moved on since (another epoch, another driver, ended). One row with run null: the
# claim is known and nothing of it is left. 0 rows: no such claim. No locks. Index: claim_request_id, primary key.
READ_CLAIM: Final = """
SELECT r.id, r.epoch, r.attempt, t.slug AS tenant, r.spec
FROM runners_claimrequest c
LEFT JOIN LATERAL jsonb_to_recordset(c.runs) AS a(run bigint, epoch bigint) ON true
LEFT JOIN admission_run r ON r.id = a.run AND r.epoch = a.epoch AND r.state IN ('admitted', 'running')
     AND r.driver_kind = 'runner' AND r.driver_id = c.runner_id
LEFT JOIN admission_tenant t ON t.id = r.tenant_id
WHERE c.runner_id = %(runner)s AND c.request_id = %(request_id)s
ORDER BY r.id
"""

# Answers that nobody can ask for any more. Bounded. Index: the one on `at`.
DELETE_OLD_CLAIMS: Final = """
DELETE FROM runners_claimrequest WHERE id IN (
    SELECT id FROM runners_claimrequest WHERE at < statement_timestamp() - make_interval(secs => %(age)s)
    ORDER BY at LIMIT %(limit)s)
"""

# Append to the log of an open hold, where it ends at the offset. One statement: the attempt's size moves and the bytes
# are stored, or neither. The size's own predicate decides between two appends at once: the second waits for the row
# and then does not match. The hold is judged without a lock: bytes that a driver, displaced in this moment, still adds
# end its own attempt's log, and one that was adopted with its attempt is told the stored size at its next append.
# Late: for a while after its end the driver that reported the end of an attempt may still deliver the rest of that
# attempt's log, and of no other. Who had the run taken away reported no end.
# 0 rows: superseded. `size` null: the log ends elsewhere, or was cut. Index: primary key, attempt_number.
APPEND_LOG: Final = """
WITH held AS (
    SELECT r.id, r.attempt, r.cancel_requested_at IS NOT NULL AS cancel FROM admission_run r
    WHERE r.id = %(run)s AND r.epoch = %(epoch)s AND r.state IN ('admitted', 'running')
      AND r.driver_kind = %(driver_kind)s AND r.driver_id = %(driver_id)s
    UNION ALL
    SELECT t.run_id, t.number, false FROM admission_attempt t
    WHERE t.run_id = %(run)s AND t.epoch = %(epoch)s AND t.driver_kind = %(driver_kind)s
      AND t.driver_id = %(driver_id)s AND t.ending IN ('succeeded', 'failed', 'timed_out', 'cancelled')
      AND t.released_at > statement_timestamp() - make_interval(secs => %(late)s)
),
grown AS (
    UPDATE admission_attempt t
    SET log_size = t.log_size + octet_length(%(data)s::bytea), log_truncated = %(cut)s
    FROM held h
    WHERE t.run_id = h.id AND t.number = h.attempt AND t.log_size = %(offset)s AND NOT t.log_truncated
    RETURNING t.run_id, t.number, t.log_size
),
stored AS (
    INSERT INTO runners_logchunk (run_id, attempt, start, data)
    SELECT run_id, number, %(offset)s, %(data)s::bytea FROM grown WHERE octet_length(%(data)s::bytea) > 0
)
SELECT h.attempt, h.cancel, g.log_size AS size FROM held h LEFT JOIN grown g ON true
"""

# Where the log ends, in a statement of its own: the appending one saw the row as it was before it waited for the lock.
READ_LOG_END: Final = """
SELECT log_size AS size, log_truncated AS cut FROM admission_attempt WHERE run_id = %(run)s AND number = %(attempt)s
"""

# Where an attempt's log would end, from the driver that reported its end without having delivered all of it. 0 rows:
# not its attempt. Index: attempt_number, logend_attempt.
NOTE_LOG_END: Final = """
INSERT INTO runners_logend (run_id, attempt, size)
SELECT t.run_id, t.number, %(size)s FROM admission_attempt t
WHERE t.run_id = %(run)s AND t.epoch = %(epoch)s AND t.driver_kind = %(driver_kind)s AND t.driver_id = %(driver_id)s
  AND t.released_at IS NOT NULL
ON CONFLICT (run_id, attempt) DO UPDATE SET size = excluded.size
"""

# A piece of a log: whole chunks, the first of which may begin before the offset. Index: logchunk_position.
READ_LOG: Final = """
SELECT start, data FROM runners_logchunk
WHERE run_id = %(run)s AND attempt = %(attempt)s AND start < %(offset)s + %(limit)s
  AND start >= coalesce((SELECT max(start) FROM runners_logchunk
                         WHERE run_id = %(run)s AND attempt = %(attempt)s AND start <= %(offset)s), 0)
ORDER BY start
"""

# Whose log, how long, whether more may come. `%(tenant_id)s` null: any tenant. 0 rows: no such run for this caller.
READ_LOG_STATE: Final = """
SELECT r.state, r.attempt AS latest, t.number, coalesce(t.log_size, 0) AS size,
       coalesce(t.log_truncated, false) AS truncated, t.released_at IS NOT NULL AS released,
       CASE WHEN t.log_truncated THEN 0 ELSE greatest(coalesce(e.size, 0) - coalesce(t.log_size, 0), 0) END AS missing,
       coalesce(e.size > t.log_size AND t.released_at > statement_timestamp() - make_interval(secs => %(late)s),
                false) AS more_may_come,
       r.finished_at + make_interval(secs => 86400 * %(days)s::float8) AS kept_until
FROM admission_run r
LEFT JOIN admission_attempt t ON t.run_id = r.id AND t.number = coalesce(%(attempt)s::int, r.attempt)
LEFT JOIN runners_logend e ON e.run_id = t.run_id AND e.attempt = t.number
WHERE r.id = %(run)s AND (%(tenant_id)s::bigint IS NULL OR r.tenant_id = %(tenant_id)s)
"""

# Output of runs that ended long ago, or are not there any more; the sizes stay, so that a page can say what was there.
# Looks at a bounded piece of the table, oldest first: `last` is where the next call goes on, `reached` says that
# younger output begins. Index: primary keys.
DELETE_OLD_LOGS: Final = """
WITH looked AS (
    SELECT id, run_id, at < statement_timestamp() - make_interval(secs => %(age)s) AS old
    FROM runners_logchunk WHERE id > %(after)s ORDER BY id LIMIT %(limit)s
),
due AS (
    SELECT l.id FROM looked l LEFT JOIN admission_run r ON r.id = l.run_id
    WHERE l.old AND (r.id IS NULL OR r.finished_at < statement_timestamp() - make_interval(secs => %(age)s))
),
deleted AS (DELETE FROM runners_logchunk WHERE id IN (SELECT id FROM due) RETURNING id)
SELECT (SELECT count(*) FROM deleted) AS deleted, max(id) AS last, coalesce(bool_or(NOT old), true) AS reached
FROM looked
"""

# Ends of logs whose runs are gone. There are few rows: only logs that could not be delivered have one. Bounded.
# Index: primary keys.
DELETE_ORPHANED_LOG_ENDS: Final = """
DELETE FROM runners_logend WHERE id IN (
    SELECT e.id FROM runners_logend e LEFT JOIN admission_run r ON r.id = e.run_id
    WHERE r.id IS NULL ORDER BY e.id LIMIT %(limit)s)
"""

# Runners as others see them, those heard last, with how many slots each has in use. Revoked ones too: a permit may
# still name them. No locks. Index: run_driver (the table is small).
READ_FACTS: Final = """
SELECT r.id, r.name, r.tenant_id, r.labels, r.trust_labels, r.executors, r.slots,
       r.draining_at IS NOT NULL OR r.paused_at IS NOT NULL AS draining,
       extract(epoch FROM statement_timestamp() - r.contact_at)::float8 AS heard,
       coalesce(r.revoked_at IS NULL
           AND r.contact_at >= statement_timestamp() - make_interval(secs => %(lease_seconds)s), false) AS live,
       r.revoked_at IS NOT NULL OR r.spent_at IS NOT NULL AS gone,
       (SELECT count(*) FROM admission_run h WHERE h.driver_kind = 'runner' AND h.driver_id = r.id
            AND h.state IN ('admitted', 'running'))::int AS held
FROM runners_runner r ORDER BY r.contact_at DESC NULLS LAST LIMIT %(limit)s
"""
