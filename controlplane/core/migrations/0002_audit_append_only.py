"""The audit log can only grow."""

from __future__ import annotations

from django.db import migrations

APPEND_ONLY = """
CREATE FUNCTION core_refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit log is append-only' USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON core_auditentry FOR EACH ROW
EXECUTE FUNCTION core_refuse_audit_change();
"""
DROP = """
DROP TRIGGER audit_append_only ON core_auditentry;
DROP FUNCTION core_refuse_audit_change();
"""


class Migration(migrations.Migration):
    """The trigger that refuses change and deletion."""

    dependencies = (("core", "0001_initial"),)

    operations = (migrations.RunSQL(APPEND_ONLY, DROP),)
