"""Tokens of an installation before roles keep their powers."""

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

BEFORE, AFTER = [("controlplane", "0001_initial")], [("controlplane", "0002_tokens")]


@pytest.mark.django_db(transaction=True)
def test_scopes_become_roles_and_names_unique() -> None:
    executor = MigrationExecutor(connection)
    latest = [key for key in executor.loader.graph.leaf_nodes() if key[0] == "controlplane"]
    try:
        executor.migrate(BEFORE)
        old = executor.loader.project_state(BEFORE).apps
        user = old.get_model("auth", "User").objects.create(username="ann")
        for number, scopes in enumerate([["submit", "operate"], ["submit"], [], ["submit"]]):
            old.get_model("controlplane", "ApiToken").objects.create(
                user=user,
                name="laptop" if number != 1 else "ci",
                prefix="cr_",
                digest=str(number) * 64,
                scopes=scopes,
                created_at="2026-01-01T00:00:00Z",
            )
        executor = MigrationExecutor(connection)
        executor.migrate(AFTER)
        new = executor.loader.project_state(AFTER).apps.get_model("controlplane", "ApiToken")
        assert list(new.objects.order_by("pk").values_list("name", "role")) == [
            ("laptop", "operator"),
            ("ci", "submitter"),
            ("laptop 2", "viewer"),
            ("laptop 3", "submitter"),
        ]
    finally:
        MigrationExecutor(connection).migrate(latest)
