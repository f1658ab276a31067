"""The named statements of leadership (L1-L5 of the contract's models). All times are the database's.

Lock order: the lease's row, then a fire's, then whatever the sweep writes. READ COMMITTED.
"""

from __future__ import annotations

from typing import Final

# A plain look. 0 rows: nobody ever led. Index: unique role.
READ_LEASE: Final = """
SELECT term, holder, holder_name, expires_at <= clock_timestamp() AS free, step_down_at IS NOT NULL AS step_down
FROM leadership_lease WHERE role = %(role)s
"""

# L1. Wins a free or expired lease: the term grows, also for the same holder. SET names `term`, a key column, so it
# takes the row FOR UPDATE and waits for every sweep that proved the old term by FOR KEY SHARE; the predicate is judged
# after that wait. History in the same statement: the old term closes when its lease ended. 0 rows: somebody holds it.
# Index: unique role, term_once.
WIN: Final = """
WITH won AS (
    INSERT INTO leadership_lease AS l (role, term, holder, holder_name, acquired_at, renewed_at, expires_at)
    VALUES (%(role)s, 1, %(holder)s, %(holder_name)s, clock_timestamp(), clock_timestamp(),
            clock_timestamp() + make_interval(secs => %(ttl)s))
    ON CONFLICT (role) DO UPDATE SET
        term = l.term + 1, holder = excluded.holder, holder_name = excluded.holder_name,
        acquired_at = clock_timestamp(), renewed_at = clock_timestamp(),
        expires_at = clock_timestamp() + make_interval(secs => %(ttl)s),
        step_down_at = NULL, step_down_by = '', step_down_reason = ''
    WHERE l.expires_at <= clock_timestamp()
    RETURNING term
),
closed AS (
    UPDATE leadership_term t
    SET ended_at = (SELECT l.expires_at FROM leadership_lease l WHERE l.role = %(role)s), ended_because = 'expired'
    FROM won w WHERE t.role = %(role)s AND t.term < w.term AND t.ended_at IS NULL
),
opened AS (
    INSERT INTO leadership_term (role, term, holder, holder_name, started_at)
    SELECT %(role)s, term, %(holder)s, %(holder_name)s, clock_timestamp() FROM won
)
SELECT term FROM won
"""

# L2. SET names no key column: a renewal never waits for a sweep. 0 rows: lost, or expired (then a new term is won).
# Index: unique role.
RENEW: Final = """
UPDATE leadership_lease
SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + make_interval(secs => %(ttl)s)
WHERE role = %(role)s AND holder = %(holder)s AND term = %(term)s AND expires_at > clock_timestamp()
RETURNING term
"""

# L3. Frees the lease if it is still this term's; the term stays. Does not wait for sweeps: the next winner does.
# 0 rows: it was another's by then. Index: unique role, term_once.
RESIGN: Final = """
WITH freed AS (
    UPDATE leadership_lease SET holder = '', holder_name = '', expires_at = clock_timestamp()
    WHERE role = %(role)s AND holder = %(holder)s AND term = %(term)s
    RETURNING term, step_down_by, step_down_reason
),
closed AS (
    UPDATE leadership_term t
    SET ended_at = clock_timestamp(), ended_because = %(because)s,
        note = CASE WHEN f.step_down_by <> '' THEN f.step_down_by || ': ' || f.step_down_reason ELSE '' END
    FROM freed f WHERE t.role = %(role)s AND t.term = f.term AND t.ended_at IS NULL
)
SELECT term FROM freed
"""

# An operator asks the term in force to end. The holder reads it at its next look, ends its belief and only then
# resigns: freeing the row here would let a successor lead while the holder still believes. 0 rows: nobody leads, or it
# was asked already. Names no key column. Index: unique role.
ASK_STEP_DOWN: Final = """
UPDATE leadership_lease
SET step_down_at = clock_timestamp(), step_down_by = %(by)s, step_down_reason = %(reason)s
WHERE role = %(role)s AND expires_at > clock_timestamp() AND step_down_at IS NULL
RETURNING term, holder_name
"""

# L5, first half: bounds of this transaction alone (behind a pooler nothing else is ours). A process stopped inside its
# sweep would hold the takeover for ever. transaction_timeout, from PostgreSQL 17 on, bounds the whole.
BOUND_TRANSACTION: Final = """
SELECT set_config('statement_timeout', %(ms)s, true), set_config('idle_in_transaction_session_timeout', %(ms)s, true),
       CASE WHEN current_setting('server_version_num')::int >= 170000
            THEN set_config('transaction_timeout', %(ms)s, true) END
"""

# L5: the term is in force, and stays so to the end of this transaction: a takeover waits, a renewal does not. An
# expired term is not proved, also if nobody has taken it: overlapping sweeps of a dead term would hold off its
# successor for ever. 0 rows: superseded. Index: lease_role_term.
PROVE_TERM: Final = """
SELECT term FROM leadership_lease
WHERE role = %(role)s AND term = %(term)s AND expires_at > clock_timestamp() FOR KEY SHARE
"""

# L4. The due time of each loop, on a grid of its period that is the same for everybody. Needs no proof of the term: a
# late insert of an old leader is taken over. At most one undone fire of a loop, so a slow one is waited for: its
# successor is the due time that is current when it ended. Index: fire_once, fire_one_undone.
ENQUEUE: Final = """
INSERT INTO leadership_fire (loop, fire_at, term, enqueued_at)
SELECT d.loop, d.fire_at, %(term)s, clock_timestamp()
FROM (SELECT loop, to_timestamp(floor(extract(epoch FROM statement_timestamp()) / period) * period) AS fire_at
      FROM unnest(%(loops)s::text[], %(periods)s::numeric[]) AS g(loop, period)) d
WHERE NOT EXISTS (SELECT FROM leadership_fire f WHERE f.loop = d.loop AND f.fire_at = d.fire_at)
  AND NOT EXISTS (SELECT FROM leadership_fire f WHERE f.loop = d.loop AND f.state = 'undone')
ON CONFLICT DO NOTHING
RETURNING loop, fire_at
"""

# L4, second half: what a lost leader left undone becomes this term's, and is sent again.
# Index: fire_one_undone.
TAKE_OVER: Final = """
UPDATE leadership_fire
SET term = %(term)s, enqueued_at = clock_timestamp(), started_at = NULL, progress_at = NULL, worker = ''
WHERE state = 'undone' AND term < %(term)s
RETURNING loop, fire_at
"""

# An operator's own fire, at the time of asking. 0 rows: one of this loop is undone. Index: fire_once, fire_one_undone.
ENQUEUE_NOW: Final = """
INSERT INTO leadership_fire (loop, fire_at, term, enqueued_at, asked_by)
VALUES (%(loop)s, statement_timestamp(), %(term)s, clock_timestamp(), %(by)s)
ON CONFLICT DO NOTHING
RETURNING loop, fire_at
"""

# A fire that nobody took although the queue is empty: its task was lost (an operator purged the queue). Sent again.
# Index: fire_one_undone.
RESEND: Final = """
UPDATE leadership_fire SET enqueued_at = clock_timestamp()
WHERE state = 'undone' AND term = %(term)s AND started_at IS NULL
  AND enqueued_at < statement_timestamp() - make_interval(secs => %(untaken)s)
  AND NOT EXISTS (SELECT FROM django_q_ormq)
RETURNING loop, fire_at
"""

# A started fire whose worker makes no progress is failed, so that the loop goes on. One that has a transaction
# under way is passed over; whatever it does after this finds the fire ended. Index: fire_one_undone.
FAIL_SILENT: Final = """
WITH silent AS (
    SELECT id FROM leadership_fire
    WHERE state = 'undone' AND progress_at < statement_timestamp() - make_interval(secs => %(silent)s)
    FOR UPDATE SKIP LOCKED
)
UPDATE leadership_fire f
SET state = 'failed', finished_at = clock_timestamp(), error = 'its worker fell silent (killed, or stopped)'
FROM silent s WHERE f.id = s.id
RETURNING f.loop, f.fire_at, f.worker
"""

# Taken by one execution, once; a second delivery of the same task finds it started. `worker` names the execution, so a
# repeat after a lost answer is the same taking. Index: fire_once.
START_FIRE: Final = """
UPDATE leadership_fire SET started_at = clock_timestamp(), progress_at = clock_timestamp(), worker = %(worker)s
WHERE loop = %(loop)s AND fire_at = %(fire_at)s AND term = %(term)s AND state = 'undone'
  AND (started_at IS NULL OR worker = %(worker)s)
RETURNING id
"""

# L5: undone, and still this term's. Locks the fire to the end of the transaction. 0 rows: superseded. Index: primary
# key.
PROGRESS_FIRE: Final = """
UPDATE leadership_fire SET progress_at = clock_timestamp()
WHERE id = %(fire)s AND term = %(term)s AND state = 'undone'
RETURNING id
"""

# In the transaction of the sweep's last writes. Index: primary key.
FINISH_FIRE: Final = """
UPDATE leadership_fire SET state = %(state)s, finished_at = clock_timestamp(), result = %(result)s, error = %(error)s
WHERE id = %(fire)s AND term = %(term)s AND state = 'undone'
RETURNING id
"""

# The loops of the running code, for those who look at them. Index: loop_place.
DECLARE_LOOPS: Final = """
INSERT INTO leadership_loopseen (loop, place, gate, seconds, why)
SELECT loop, '', gate, seconds, why
FROM unnest(%(loops)s::text[], %(gates)s::text[], %(seconds)s::float8[], %(whys)s::text[])
    AS g(loop, gate, seconds, why)
ORDER BY loop
ON CONFLICT (loop, place) DO UPDATE SET gate = excluded.gate, seconds = excluded.seconds, why = excluded.why
"""
# Of processes that are gone. Index: none needed, the table is small.
DELETE_SEEN: Final = """
DELETE FROM leadership_loopseen WHERE id IN (
    SELECT id FROM leadership_loopseen
    WHERE place <> '' AND last_at < statement_timestamp() - make_interval(secs => %(age)s) LIMIT %(limit)s)
"""
FORGET_LOOPS: Final = "DELETE FROM leadership_loopseen WHERE NOT loop = ANY(%(loops)s)"

# A local loop's last run in one process. Index: loop_place.
NOTE_LOCAL: Final = """
INSERT INTO leadership_loopseen (loop, place, gate, seconds, why, last_at, last_seconds, result, error)
VALUES (%(loop)s, %(place)s, 'local', %(seconds)s, '', statement_timestamp(), %(took)s, %(result)s, %(error)s)
ON CONFLICT (loop, place) DO UPDATE SET
    seconds = excluded.seconds, last_at = excluded.last_at, last_seconds = excluded.last_seconds,
    result = excluded.result, error = excluded.error
"""

# Effects outside the database. Declared in the deciding transaction; the same key again is nothing. Index:
# intent_once.
DECLARE_INTENTS: Final = """
INSERT INTO leadership_intent (kind, key, payload)
SELECT %(kind)s, key, payload FROM jsonb_to_recordset(%(intents)s::jsonb) AS g(key text, payload jsonb)
ORDER BY key
ON CONFLICT (kind, key) DO NOTHING
RETURNING key
"""

# Claimed by moving its time forward, further at each try: a deliverer that dies is succeeded then. Index:
# intent_pending.
CLAIM_INTENTS: Final = """
WITH due AS (
    SELECT id FROM leadership_intent
    WHERE done_at IS NULL AND dead_at IS NULL AND next_at <= statement_timestamp()
    ORDER BY next_at LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE leadership_intent i
SET tries = i.tries + 1, next_at = statement_timestamp() + make_interval(secs => 60.0 * power(2, least(i.tries, 8)))
FROM due d WHERE i.id = d.id
RETURNING i.id, i.kind, i.key, i.payload, i.tries
"""
CLOSE_INTENT: Final = """
UPDATE leadership_intent
SET done_at = CASE WHEN %(error)s = '' THEN clock_timestamp() END, error = %(error)s,
    dead_at = CASE WHEN %(error)s <> '' AND tries >= %(most)s THEN clock_timestamp() END
WHERE id = %(intent)s AND tries = %(tries)s AND done_at IS NULL
"""

# What is deleted after its time, in batches. The newest fire of a loop stays: it is what operators see.
# Index: fire_state_finished.
DELETE_FIRES: Final = """
DELETE FROM leadership_fire WHERE id IN (
    SELECT f.id FROM leadership_fire f
    WHERE f.state = %(state)s AND f.finished_at < statement_timestamp() - make_interval(secs => %(age)s)
      AND EXISTS (SELECT FROM leadership_fire n WHERE n.loop = f.loop AND n.fire_at > f.fire_at)
    ORDER BY f.finished_at LIMIT %(limit)s)
"""
DELETE_SAMPLES: Final = """
DELETE FROM core_sample WHERE id IN (
    SELECT id FROM core_sample WHERE at < statement_timestamp() - make_interval(secs => %(age)s)
    ORDER BY at LIMIT %(limit)s)
"""
DELETE_INTENTS: Final = """
DELETE FROM leadership_intent WHERE id IN (
    SELECT id FROM leadership_intent
    WHERE coalesce(done_at, dead_at) < statement_timestamp() - make_interval(secs => %(age)s)
    ORDER BY id LIMIT %(limit)s)
"""
