"""Audit lines of earlier versions get the names of actions of this one."""

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

AFTER = ("controlplane", "0010_audit_log")
OLD = {
    ("deleted", "job 7 sweep"): "delete.job",
    ("deleted", "task one"): "delete.task",
    ("closed", "alert mass_loss: default"): "close.alert",
    ("created", "token ci of ann"): "create.token",
    ("created", "user ann"): "create.user",
    ("deactivated", "user ann"): "change.user",
    ("revoked", "token ci of ann"): "revoke.token",
    ("revoked", "key of cell cell-1"): "revoke.cell_key",
    ("logged in", "admin"): "log_in.user",
    ("login failed", "admin"): "refuse.login",
}


@pytest.mark.django_db(transaction=True)
def test_old_lines_keep_their_meaning() -> None:
    executor = MigrationExecutor(connection)
    latest = [key for key in executor.loader.graph.leaf_nodes() if key[0] == "controlplane"]
    before = list(executor.loader.disk_migrations[AFTER].dependencies)
    try:
        executor.migrate(before)
        old = executor.loader.project_state(before).apps.get_model("controlplane", "AuditLine")
        for action, subject in OLD:
            old.objects.create(
                at="2026-01-01T00:00:00Z",
                actor="olga",
                action=action,
                subject=subject,
                text="a reason",
            )
        executor = MigrationExecutor(connection)
        executor.migrate([AFTER])
        new = executor.loader.project_state([AFTER]).apps.get_model("controlplane", "AuditLine")
        lines = new.objects.order_by("pk")
        assert [line.action for line in lines] == list(OLD.values())
        assert lines.get(action="change.user").text == "deactivated; a reason"
        assert lines.get(action="delete.job").text == "a reason"
    finally:
        MigrationExecutor(connection).migrate(latest)
