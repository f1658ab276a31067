"""A driver's own statements (T2, T3, T4, T6). See the package for the conventions and the lock order."""

from __future__ import annotations

from typing import Final

from admission.sql.blocks import RELEASE_TAIL

# Start accepted: also for a repeat by the same hold. Renews lease and permits. 0 rows for a run: see READ_HOLDS.
# Locks: runs in order, then their permits. Index: primary key, permit_run.
START_RUNS: Final = """
WITH asked AS (SELECT * FROM unnest(%(runs)s::bigint[], %(epochs)s::bigint[]) AS a(id, epoch)),
locked AS (
    SELECT r.id, r.epoch, r.state = 'admitted' AS fresh
    FROM admission_run r JOIN asked a ON a.id = r.id AND a.epoch = r.epoch
    WHERE r.state IN ('admitted', 'running') AND r.driver_kind = %(driver_kind)s AND r.driver_id = %(driver_id)s
      AND r.cancel_requested_at IS NULL
    ORDER BY r.id FOR NO KEY UPDATE OF r
),
started AS (
    UPDATE admission_run r
    SET state = 'running', tries = r.tries + 1, unstarted = 0, started_at = clock_timestamp(),
        run_deadline = clock_timestamp() + make_interval(secs => r.timeout_seconds + %(deadline_grace_seconds)s),
        lease_until = clock_timestamp() + make_interval(secs => %(lease_seconds)s)
    FROM locked l WHERE r.id = l.id AND l.fresh AND r.state = 'admitted'
    RETURNING r.id, r.attempt
),
noted AS (
    UPDATE admission_attempt t SET started_at = clock_timestamp() FROM started s
    WHERE t.run_id = s.id AND t.number = s.attempt
),
renewed AS (
    UPDATE admission_permit p SET renewed_at = clock_timestamp() FROM started s
    WHERE p.run_id = s.id AND p.attempt = s.attempt
)
SELECT id, epoch FROM locked
"""

# Renew exactly the listed holds: run lease and, if there are any, permits. Judged by the run row.
# Locks: runs in order, then their permits. A missing run in the answer: superseded.
RENEW_RUNS: Final = """
WITH asked AS (SELECT * FROM unnest(%(runs)s::bigint[], %(epochs)s::bigint[]) AS a(id, epoch)),
locked AS (
    SELECT r.id, r.attempt, r.epoch, r.cancel_requested_at IS NOT NULL AS cancel
    FROM admission_run r JOIN asked a ON a.id = r.id AND a.epoch = r.epoch
    WHERE r.state IN ('admitted', 'running') AND r.driver_kind = %(driver_kind)s AND r.driver_id = %(driver_id)s
    ORDER BY r.id FOR NO KEY UPDATE OF r
),
leased AS (
    UPDATE admission_run r
    SET lease_until = clock_timestamp() + make_interval(secs => %(lease_seconds)s),
        cancel_seen_at = CASE WHEN l.cancel THEN coalesce(r.cancel_seen_at, clock_timestamp()) END
    FROM locked l WHERE r.id = l.id
),
renewed AS (
    UPDATE admission_permit p SET renewed_at = clock_timestamp() FROM locked l
    WHERE p.run_id = l.id AND p.attempt = l.attempt
)
SELECT id, epoch, cancel FROM locked
"""

# An image is being pulled for these: their start deadline moves on, up to a time since their admission, and their
# lease with it. No permit is renewed by it: a pull is shorter than a permit lives. A run missing in the answer:
# superseded.
# Locks: runs in order. Index: primary key.
EXTEND_STARTS: Final = """
WITH asked AS (SELECT * FROM unnest(%(runs)s::bigint[], %(epochs)s::bigint[]) AS a(id, epoch)),
locked AS (
    SELECT r.id, r.epoch, r.state = 'admitted' AS waits, r.cancel_requested_at IS NOT NULL AS cancel
    FROM admission_run r JOIN asked a ON a.id = r.id AND a.epoch = r.epoch
    WHERE r.state IN ('admitted', 'running') AND r.driver_kind = %(driver_kind)s AND r.driver_id = %(driver_id)s
    ORDER BY r.id FOR NO KEY UPDATE OF r
),
extended AS (
    UPDATE admission_run r
    SET start_deadline = greatest(r.start_deadline, least(
            clock_timestamp() + make_interval(secs => %(start_seconds)s),
            r.admitted_at + make_interval(secs => %(pull_seconds)s))),
        lease_until = clock_timestamp() + make_interval(secs => %(lease_seconds)s)
    FROM locked l WHERE r.id = l.id AND l.waits
)
SELECT id, epoch, cancel FROM locked
"""

# What a driver holds, with pending cancels: read at each drain (rule A10). `maker`: whose incarnation a started run's
# container bears; another than the driver's where it was adopted. `left`: seconds of its time, by this clock. No
# locks. Index: run_driver, attempt_number.
READ_HOLDS: Final = """
SELECT r.id, r.epoch, r.attempt, r.state, r.cancel_requested_at IS NOT NULL AS cancel, r.spec,
       (SELECT t.slug FROM admission_tenant t WHERE t.id = r.tenant_id) AS tenant,
       (SELECT a.maker FROM admission_attempt a WHERE a.run_id = r.id AND a.number = r.attempt) AS maker,
       extract(epoch FROM r.started_at - statement_timestamp())::float8 + r.timeout_seconds AS "left"
FROM admission_run r
WHERE r.driver_kind = %(driver_kind)s AND r.driver_id = %(driver_id)s AND r.state IN ('admitted', 'running')
ORDER BY r.id
"""

# T7 where what the old driver started goes on under a new one (rule R10): the same attempt, the same permits, renewed;
# the epoch rises. `{cause}` is judged again here, under the row lock. Only what was started: of an admitted run there
# is nothing. A pending cancel and the deadlines stay as they are. The new driver's row is locked before (KEY SHARE).
# A missing run in the answer: it has moved on, or the cause is not true of it. Locks: runs in order, their attempts,
# their permits. Index: primary key, attempt_number, permit_run.
ADOPT_RUNS: Final = """
WITH asked AS (SELECT * FROM unnest(%(runs)s::bigint[], %(epochs)s::bigint[]) AS a(id, epoch)),
locked AS (
    SELECT r.id, r.epoch AS held FROM admission_run r JOIN asked a ON a.id = r.id AND a.epoch = r.epoch
    WHERE r.state = 'running' AND ({cause})
    ORDER BY r.id FOR NO KEY UPDATE OF r
),
adopted AS (
    UPDATE admission_run r
    SET epoch = r.epoch + 1, driver_kind = %(driver_kind)s, driver_id = %(driver_id)s,
        driver_incarnation = %(incarnation)s, driver_name = %(driver_name)s,
        lease_until = clock_timestamp() + make_interval(secs => %(lease_seconds)s)
    FROM locked l WHERE r.id = l.id
    RETURNING r.id, l.held, r.epoch, r.attempt
),
noted AS (
    UPDATE admission_attempt t
    SET epoch = a.epoch, driver_kind = %(driver_kind)s, driver_id = %(driver_id)s, driver_name = %(driver_name)s
    FROM adopted a WHERE t.run_id = a.id AND t.number = a.attempt
),
renewed AS (
    UPDATE admission_permit p SET renewed_at = clock_timestamp(), driver_name = %(driver_name)s
    FROM adopted a WHERE p.run_id = a.id AND p.attempt = a.attempt
)
SELECT id, held, epoch, attempt FROM adopted
"""

# Of these attempts, those that are open now; with who drives them, and which incarnation their container bears.
# No locks. Index: primary key, attempt_number.
READ_OPEN_ATTEMPTS: Final = """
SELECT r.id, r.attempt, r.epoch, r.driver_kind, r.driver_id, r.driver_incarnation, t.maker
FROM unnest(%(runs)s::bigint[], %(attempts)s::int[]) AS a(id, number)
JOIN admission_run r ON r.id = a.id AND r.attempt = a.number AND r.state IN ('admitted', 'running')
JOIN admission_attempt t ON t.run_id = a.id AND t.number = a.number
"""

# Verdicts about holds that a statement did not match. No locks. Index: primary key.
READ_VERDICTS: Final = """
SELECT r.id, r.epoch, r.state, r.reason, r.exit_code, r.driver_kind, r.driver_id,
       r.cancel_requested_at IS NOT NULL AS cancel
FROM admission_run r WHERE r.id = ANY(%(runs)s)
"""

# The end of a hold, as its driver saw it (T4; T6 where the ending is `cancelled`). Only the current epoch of that
# driver matches; success and time-out need an accepted start. A failed run that asked for retries goes back to the
# queue with its epoch raised. Permits go in the same statement. A missing run in the answer: see READ_VERDICTS.
# Locks: runs in order, permits, counters in order. Index: primary key, permit_run, counter_scope_key.
SETTLE_RUNS: Final = f"""
WITH asked AS (
    SELECT * FROM unnest(%(runs)s::bigint[], %(epochs)s::bigint[], %(endings)s::text[], %(reasons)s::text[],
                         %(details)s::text[], %(exit_codes)s::int[]) AS a(id, epoch, ending, reason, detail, exit_code)
),
locked AS (
    SELECT r.id, r.attempt, r.tenant_id, a.epoch AS held, a.ending, a.reason, a.detail, a.exit_code,
           (a.ending = 'failed' AND r.retry_on_failure AND r.state = 'running' AND r.tries < r.max_tries
            AND r.cancel_requested_at IS NULL) AS again
    FROM admission_run r JOIN asked a ON a.id = r.id AND a.epoch = r.epoch
    WHERE r.driver_kind = %(driver_kind)s AND r.driver_id = %(driver_id)s
      AND (r.state = 'running' OR (r.state = 'admitted' AND a.ending IN ('failed', 'cancelled')))
      AND (a.ending <> 'cancelled' OR r.cancel_requested_at IS NOT NULL)
    ORDER BY r.id FOR NO KEY UPDATE OF r
),
moved AS (
    UPDATE admission_run r
    SET state = CASE WHEN l.again THEN 'queued'
                     WHEN l.ending = 'cancelled' AND r.cancel_ending <> '' THEN r.cancel_ending ELSE l.ending END,
        reason = CASE WHEN l.ending = 'cancelled' AND r.cancel_ending = 'timed_out' THEN 'run_deadline'
                      ELSE l.reason END,
        detail = l.detail, exit_code = l.exit_code,
        epoch = r.epoch + CASE WHEN l.again THEN 1 ELSE 0 END,
        driver_kind = CASE WHEN l.again THEN '' ELSE r.driver_kind END,
        driver_id = CASE WHEN NOT l.again THEN r.driver_id END,
        driver_incarnation = CASE WHEN NOT l.again THEN r.driver_incarnation END,
        driver_name = CASE WHEN l.again THEN '' ELSE r.driver_name END,
        not_before = CASE WHEN l.again THEN clock_timestamp() + make_interval(
            secs => r.backoff_seconds * power(2, least(r.tries - 1, 16))) ELSE r.not_before END,
        delayed = l.again,
        finished_at = CASE WHEN NOT l.again THEN clock_timestamp() END,
        cancel_stopped_at = CASE WHEN r.cancel_requested_at IS NOT NULL THEN clock_timestamp() END,
        cancel_confirmed_at = CASE WHEN r.cancel_requested_at IS NOT NULL THEN clock_timestamp() END
    FROM locked l WHERE r.id = l.id
    RETURNING r.id, l.attempt, l.held, r.epoch, r.state, r.tenant_id, l.ending, l.reason, l.detail, l.exit_code
),
closed AS (
    UPDATE admission_attempt t
    SET released_at = clock_timestamp(), ending = m.ending, reason = m.reason, detail = m.detail,
        exit_code = m.exit_code
    FROM moved m WHERE t.run_id = m.id AND t.number = m.attempt
),
{RELEASE_TAIL}
SELECT id, attempt, held, epoch, state, tenant_id, ending,
       (SELECT coalesce(bool_or(wakes), false) FROM lowered) AS wakes
FROM moved
"""

# The end recorded for a hold, for repeats of a result. No locks. Index: attempt_number.
READ_CLOSED: Final = """
SELECT t.run_id, t.epoch, t.ending, t.exit_code
FROM unnest(%(runs)s::bigint[], %(epochs)s::bigint[]) AS a(id, epoch)
JOIN admission_attempt t ON t.run_id = a.id AND t.epoch = a.epoch
WHERE t.released_at IS NOT NULL AND t.driver_kind = %(driver_kind)s AND t.driver_id = %(driver_id)s
"""

# A cancel that was ended without its driver, because it was silent: the driver comes back and says that it stopped.
# Only the last holder's word counts, and only for a run that ended by that cancel; nothing but the times is written. A
# repeat matches again. 0 rows: superseded. Locks: runs in order. Index: attempt_number, primary key.
ACKNOWLEDGE_CANCELS: Final = """
WITH last AS (
    SELECT t.run_id AS id, t.epoch AS held
    FROM unnest(%(runs)s::bigint[], %(epochs)s::bigint[]) AS a(id, epoch)
    JOIN admission_attempt t ON t.run_id = a.id AND t.epoch = a.epoch
    JOIN admission_run r ON r.id = t.run_id AND r.attempt = t.number AND r.epoch = t.epoch + 1
    WHERE t.driver_kind = %(driver_kind)s AND t.driver_id = %(driver_id)s
      AND r.cancel_requested_at IS NOT NULL AND r.state = r.cancel_ending
    ORDER BY 1 FOR NO KEY UPDATE OF r
)
UPDATE admission_run r
SET cancel_stopped_at = coalesce(r.cancel_stopped_at, clock_timestamp()),
    cancel_confirmed_at = coalesce(r.cancel_confirmed_at, clock_timestamp())
FROM last l WHERE r.id = l.id
RETURNING r.id, l.held AS epoch
"""
