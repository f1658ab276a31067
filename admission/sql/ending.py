"""Taking runs from drivers (T7), cancel (T5), deadlines. See the package for the conventions and the lock order."""

from __future__ import annotations

from typing import Final

from admission.sql.blocks import BACKLOG_TAIL, RELEASE_TAIL, RETURN_TAIL

# Take runs from their drivers for a cause that is judged again here, under the row lock. `{cause}` is one of
# `TAKE_AWAY_CAUSES`. Always raises the epoch; a permit never outlives its hold. Outcomes: a requested cancel ends it;
# an unstarted admission goes back without burning a try (the fifth in a row burns one); a started one is retried while
# tries are left, else interrupted. Everything that decides is read by `locked`, under the lock: another look at the
# table in this statement would see the row as it was before the wait, without the cancel that was waited for.
# Locks: runs in order, permits, counters in order.
TAKE_AWAY: Final = f"""
WITH asked AS (SELECT * FROM unnest(%(runs)s::bigint[], %(epochs)s::bigint[]) AS a(id, epoch)),
locked AS (
    SELECT r.id, r.attempt, r.state = 'admitted' AS unstarted, r.max_tries, r.retry_on_interrupt,
           CASE WHEN r.cancel_requested_at IS NOT NULL THEN coalesce(nullif(r.cancel_ending, ''), 'cancelled')
           END AS cancelled,
           CASE WHEN r.state = 'running' AND %(burns)s THEN r.tries
                WHEN r.state = 'running' THEN greatest(r.tries - 1, 0)
                WHEN %(counts_unstarted)s AND r.unstarted + 1 >= %(unstarted_limit)s THEN r.tries + 1
                ELSE r.tries END AS tries,
           CASE WHEN r.state = 'running' OR NOT %(counts_unstarted)s THEN 0
                WHEN r.unstarted + 1 >= %(unstarted_limit)s THEN 0 ELSE r.unstarted + 1 END AS unstarted_count
    FROM admission_run r JOIN asked a ON a.id = r.id AND a.epoch = r.epoch
    WHERE r.state IN ('admitted', 'running') AND ({{cause}})
    ORDER BY r.id FOR NO KEY UPDATE OF r
),
decided AS (
    SELECT l.*, CASE WHEN l.cancelled IS NOT NULL THEN l.cancelled
                     WHEN l.unstarted AND l.tries < greatest(l.max_tries, 1) THEN 'queued'
                     WHEN l.retry_on_interrupt AND l.tries < l.max_tries THEN 'queued'
                     ELSE 'interrupted' END AS next
    FROM locked l
),
moved AS (
    UPDATE admission_run r
    SET state = d.next, epoch = r.epoch + 1, tries = d.tries, unstarted = d.unstarted_count,
        reason = %(reason)s, detail = %(detail)s,
        driver_kind = '', driver_id = NULL, driver_incarnation = NULL, driver_name = '',
        start_deadline = NULL, lease_until = NULL, run_deadline = NULL,
        delayed = d.next = 'queued' AND NOT d.unstarted AND %(burns)s AND r.backoff_seconds > 0,
        not_before = CASE WHEN d.next = 'queued' AND NOT d.unstarted AND %(burns)s THEN clock_timestamp()
                               + make_interval(secs => r.backoff_seconds * power(2, least(d.tries - 1, 16)))
                          ELSE r.not_before END,
        finished_at = CASE WHEN d.next <> 'queued' THEN clock_timestamp() END
    FROM decided d WHERE r.id = d.id
    RETURNING r.id, d.attempt, r.epoch, r.state, r.tenant_id
),
closed AS (
    UPDATE admission_attempt t
    SET released_at = clock_timestamp(), reason = %(reason)s, detail = %(detail)s,
        ending = CASE WHEN t.started_at IS NULL THEN 'returned' ELSE 'interrupted' END
    FROM moved m WHERE t.run_id = m.id AND t.number = m.attempt
),
returned AS (SELECT tenant_id FROM moved WHERE state = 'queued'),
{RETURN_TAIL}
SELECT id, attempt, epoch, state, tenant_id FROM moved
"""

# Each cause as a predicate on the run row `r`, judged inside the statement. Recovery adds its own (dead drivers).
TAKE_AWAY_CAUSES: Final[dict[str, str]] = {
    "start_deadline": "r.state = 'admitted' AND r.start_deadline <= statement_timestamp()",
    "runner_lease": "r.driver_kind = 'runner' AND r.lease_until <= statement_timestamp()",
    "own": "r.driver_kind = %(driver_kind)s AND r.driver_id = %(driver_id)s",
    "operator": "true",
}

# Queued: ends here, and gives back whatever a claim behind a lost reply may have left (rule A9). Admitted or running:
# a request, nothing else; the run turns `cancelled` when its driver confirmed the stop. Ended: not matched. `{cause}`
# is one of `CANCEL_CAUSES`. Locks: runs in order, permits, counters. `%(tenant_id)s` null: any tenant.
CANCEL_RUNS: Final = f"""
WITH locked AS (
    SELECT r.id, r.attempt, r.state FROM admission_run r
    WHERE r.id = ANY(%(runs)s) AND r.state IN ('queued', 'admitted', 'running')
      AND (%(tenant_id)s::bigint IS NULL OR r.tenant_id = %(tenant_id)s) AND ({{cause}})
    ORDER BY r.id FOR NO KEY UPDATE OF r
),
requested AS (
    UPDATE admission_run r
    SET state = CASE WHEN l.state = 'queued' THEN %(ending)s ELSE r.state END,
        reason = CASE WHEN l.state = 'queued' THEN %(reason_code)s ELSE r.reason END,
        epoch = r.epoch + CASE WHEN l.state = 'queued' THEN 1 ELSE 0 END,
        finished_at = CASE WHEN l.state = 'queued' THEN clock_timestamp() END,
        delayed = false,
        cancel_requested_at = coalesce(r.cancel_requested_at, clock_timestamp()),
        cancel_ending = CASE WHEN r.cancel_requested_at IS NULL THEN %(ending)s ELSE r.cancel_ending END,
        cancel_by = CASE WHEN r.cancel_requested_at IS NULL THEN %(actor)s ELSE r.cancel_by END,
        cancel_reason = CASE WHEN r.cancel_requested_at IS NULL THEN %(reason)s ELSE r.cancel_reason END
    FROM locked l WHERE r.id = l.id
    RETURNING r.id, r.attempt, r.state, r.tenant_id
),
moved AS (SELECT id, attempt FROM requested WHERE state NOT IN ('admitted', 'running')),
{RELEASE_TAIL}
SELECT id, state, tenant_id FROM requested
"""

# Why a run is cancelled, as a predicate on the run row `r`, judged under its lock: between the sweep's look and its
# act an overdue attempt may have been taken away, and its successor (or the queued run) is not overdue.
CANCEL_CAUSES: Final[dict[str, str]] = {
    "asked": "true",
    "run_deadline": (
        "r.state = 'running' AND r.run_deadline <= statement_timestamp() AND r.cancel_requested_at IS NULL"
    ),
}

# Delayed runs whose time has come join the queue. Index: run_delayed. Bounded; rows under somebody's lock wait a tick.
RELEASE_DELAYED: Final = f"""
WITH due AS (
    SELECT id FROM admission_run
    WHERE state = 'queued' AND delayed AND not_before <= statement_timestamp()
    ORDER BY not_before LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
),
returned AS (
    UPDATE admission_run r SET delayed = false FROM due d WHERE r.id = d.id RETURNING r.id, r.tenant_id
),
{BACKLOG_TAIL}
SELECT id, tenant_id FROM returned
"""

# Queue deadlines that have passed: the run ends `timed_out`. Index: run_queue_deadline.
EXPIRE_QUEUED: Final = f"""
WITH due AS (
    SELECT id FROM admission_run
    WHERE state = 'queued' AND queue_deadline <= statement_timestamp()
    ORDER BY queue_deadline LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
),
ended AS (
    UPDATE admission_run r
    SET state = 'timed_out', reason = 'queue_deadline', epoch = r.epoch + 1, finished_at = clock_timestamp(),
        delayed = false
    FROM due d WHERE r.id = d.id RETURNING r.id, r.attempt, r.tenant_id
),
moved AS (SELECT id, attempt FROM ended),
{RELEASE_TAIL}
SELECT id, tenant_id FROM ended
"""

# These end because nobody can take them. The epoch proves that they waited all the time since they were looked at; it
# is not looked at again whether somebody who could take them has come meanwhile: he did not come in time. Locks: runs
# in order, permits, counters. Index: primary key.
FAIL_UNSERVED: Final = f"""
WITH locked AS (
    SELECT r.id FROM admission_run r
    JOIN unnest(%(runs)s::bigint[], %(epochs)s::bigint[]) AS a(id, epoch) ON a.id = r.id AND a.epoch = r.epoch
    WHERE r.state = 'queued'
    ORDER BY r.id FOR NO KEY UPDATE OF r
),
ended AS (
    UPDATE admission_run r
    SET state = 'failed', reason = 'no_runner', detail = %(detail)s, epoch = r.epoch + 1,
        finished_at = clock_timestamp(), delayed = false
    FROM locked l WHERE r.id = l.id RETURNING r.id, r.attempt, r.tenant_id
),
moved AS (SELECT id, attempt FROM ended),
{RELEASE_TAIL}
SELECT id, tenant_id FROM ended
"""

# Holds past their start deadline, runner leases that lapsed, runs past their time: candidates only, no locks; each is
# judged again by the statement that acts. Index: run_start_deadline, run_lease, run_run_deadline.
READ_START_DEADLINES: Final = """
SELECT id, epoch FROM admission_run WHERE state = 'admitted' AND start_deadline <= statement_timestamp()
ORDER BY start_deadline LIMIT %(limit)s
"""
READ_LAPSED_LEASES: Final = """
SELECT id, epoch FROM admission_run
WHERE state IN ('admitted', 'running') AND lease_until IS NOT NULL AND driver_kind = 'runner'
  AND lease_until <= statement_timestamp()
ORDER BY lease_until LIMIT %(limit)s
"""
READ_RUN_DEADLINES: Final = """
SELECT id FROM admission_run
WHERE state = 'running' AND run_deadline <= statement_timestamp() AND cancel_requested_at IS NULL
ORDER BY run_deadline LIMIT %(limit)s
"""
