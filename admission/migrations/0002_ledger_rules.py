"""What the database itself refuses, and how the hot tables are stored."""

from __future__ import annotations

from django.db import migrations

from admission.states import TRANSITIONS

_ALLOWED = " ".join(
    "WHEN '{}' THEN ARRAY[{}]::text[]".format(old, ", ".join(f"'{new}'" for new in news))
    for old, news in TRANSITIONS.items()
)

# The condition stands in the trigger, so the function is called only to refuse: a legal update pays one comparison.
TRANSITION_GUARD = f"""
CREATE FUNCTION admission_refuse_transition() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'run %: a % run cannot become %', OLD.id, OLD.state, NEW.state USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER run_transition BEFORE UPDATE ON admission_run FOR EACH ROW
WHEN (OLD.state IS DISTINCT FROM NEW.state AND NOT (NEW.state = ANY (CASE OLD.state {_ALLOWED} END)))
EXECUTE FUNCTION admission_refuse_transition();
CREATE FUNCTION admission_refuse_epoch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'run %: epoch % cannot fall to %', OLD.id, OLD.epoch, NEW.epoch USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER run_epoch BEFORE UPDATE ON admission_run FOR EACH ROW
WHEN (NEW.epoch < OLD.epoch) EXECUTE FUNCTION admission_refuse_epoch();
"""
TRANSITION_GUARD_DROP = """
DROP TRIGGER run_epoch ON admission_run;
DROP FUNCTION admission_refuse_epoch();
DROP TRIGGER run_transition ON admission_run;
DROP FUNCTION admission_refuse_transition();
"""

# Raised inside a statement it undoes that statement whole: a claim that inserted its permit and then found no slot
# leaves nothing, in one round trip. The SQLSTATE is ours (class WH), so nothing else is mistaken for a refusal.
REFUSAL = """
CREATE FUNCTION admission_refuse_permit() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'no slot is free under this limit' USING ERRCODE = 'WH001';
END $$;
"""
REFUSAL_DROP = "DROP FUNCTION admission_refuse_permit();"

# Room on the page for the next version of a hot row, and vacuum before dead versions pile up in the queue's index.
STORAGE = """
ALTER TABLE admission_counter SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE admission_run SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE admission_permit SET (autovacuum_vacuum_scale_factor = 0.05);
"""
STORAGE_DROP = """
ALTER TABLE admission_counter RESET (fillfactor, autovacuum_vacuum_scale_factor);
ALTER TABLE admission_run RESET (fillfactor, autovacuum_vacuum_scale_factor);
ALTER TABLE admission_permit RESET (autovacuum_vacuum_scale_factor);
"""


class Migration(migrations.Migration):
    """Triggers, the refusal function, storage parameters."""

    dependencies = (("admission", "0001_initial"),)

    operations = (
        migrations.RunSQL(TRANSITION_GUARD, TRANSITION_GUARD_DROP),
        migrations.RunSQL(REFUSAL, REFUSAL_DROP),
        migrations.RunSQL(STORAGE, STORAGE_DROP),
    )
