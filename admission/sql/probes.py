"""Stored samples of machines (rule A19). See the package for the conventions and the lock order."""

from __future__ import annotations

from typing import Final

# Locks: the driver's own row. Index: probe_driver.
RECORD_PROBE: Final = """
INSERT INTO admission_probe (driver_kind, driver_id, machine, slots_used, memory_mib_used, cpu_used, sampled_at)
VALUES (%(driver_kind)s, %(driver_id)s, %(machine)s, %(slots)s, %(memory_mib)s, %(cpu)s, clock_timestamp())
ON CONFLICT (driver_kind, driver_id) DO UPDATE SET
    machine = excluded.machine, slots_used = excluded.slots_used, memory_mib_used = excluded.memory_mib_used,
    cpu_used = excluded.cpu_used, sampled_at = excluded.sampled_at
"""
# What drivers left behind that did not say goodbye: nothing in use leaves no entry. Index: probe_machine, run_driver.
FORGET_OLD_PROBES: Final = """
DELETE FROM admission_probe p
WHERE p.machine = %(machine)s AND p.sampled_at < statement_timestamp() - make_interval(secs => %(age)s)
  AND NOT EXISTS (SELECT FROM admission_run r WHERE r.driver_kind = p.driver_kind AND r.driver_id = p.driver_id
                  AND r.state IN ('admitted', 'running'))
"""
FORGET_PROBE: Final = "DELETE FROM admission_probe WHERE driver_kind = %(driver_kind)s AND driver_id = %(driver_id)s"

# Locks: the machine, for the rest of the transaction (see the lock order). One machine's drivers only: others
# have other keys, and two that fall together cost a wait, nothing else. Not a row: there is none of a machine, and
# rows of its probes are written every tick.
LOCK_MACHINE: Final = "SELECT pg_advisory_xact_lock(hashtextextended('wharfinger.machine:' || %(machine)s, 0))"

# What is in use on a machine, for one driver of it: the newest sample that is not too old, what the driver itself
# holds, and what no sample can show yet, because it was admitted and not created, or started after the sample: its
# own, and that of the other drivers there. 0 rows: the driver never sampled, or no sample is fresh. No locks.
# Index: probe_machine, run_driver.
READ_USE: Final = """
WITH sample AS (
    SELECT memory_mib_used, cpu_used, sampled_at FROM admission_probe
    WHERE machine = %(machine)s AND sampled_at >= statement_timestamp() - make_interval(secs => %(age)s)
    ORDER BY sampled_at DESC LIMIT 1
),
held AS (
    SELECT r.memory_mib, r.cpu, p.driver_kind = %(driver_kind)s AND p.driver_id = %(driver_id)s AS own,
           r.state = 'admitted' OR r.started_at > s.sampled_at AS unseen
    FROM sample s CROSS JOIN admission_probe p
    JOIN admission_run r ON r.driver_kind = p.driver_kind AND r.driver_id = p.driver_id
    WHERE p.machine = %(machine)s AND r.state IN ('admitted', 'running')
)
SELECT s.memory_mib_used AS memory_sampled, s.cpu_used AS cpu_sampled, m.slots_used AS slots_sampled,
       count(*) FILTER (WHERE own) AS slots_own,
       coalesce(sum(memory_mib) FILTER (WHERE own), 0) AS memory_own,
       coalesce(sum(cpu) FILTER (WHERE own), 0) AS cpu_own,
       coalesce(sum(memory_mib) FILTER (WHERE own AND unseen), 0) AS memory_own_unseen,
       coalesce(sum(cpu) FILTER (WHERE own AND unseen), 0) AS cpu_own_unseen,
       coalesce(sum(memory_mib) FILTER (WHERE NOT own AND unseen), 0) AS memory_others_unseen,
       coalesce(sum(cpu) FILTER (WHERE NOT own AND unseen), 0) AS cpu_others_unseen
FROM sample s
JOIN admission_probe m ON m.driver_kind = %(driver_kind)s AND m.driver_id = %(driver_id)s
LEFT JOIN held h ON true
GROUP BY s.memory_mib_used, s.cpu_used, m.slots_used
"""
