"""Users and projects of an installation before highest bands keep what they could do."""

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

BEFORE = [("controlplane", "0006_pool_job_limits")]
AFTER = [("controlplane", "0008_quota_bands_and_defaults")]


@pytest.mark.django_db(transaction=True)
def test_existing_users_and_projects_keep_all_bands_and_their_limits() -> None:
    executor = MigrationExecutor(connection)
    latest = [key for key in executor.loader.graph.leaf_nodes() if key[0] == "controlplane"]
    try:
        executor.migrate(BEFORE)
        old = executor.loader.project_state(BEFORE).apps
        model = old.get_model
        users = [model("auth", "User").objects.create(username=name) for name in ("ann", "bob")]
        home = model("controlplane", "Domain").objects.create(name="home")
        model("controlplane", "Project").objects.create(domain=home, name="red")
        model("controlplane", "Quota").objects.create(user=users[0], running_tasks=7, weight=2)
        model("controlplane", "Quota").objects.create(domain=home, running_tasks=9)
        executor = MigrationExecutor(connection)
        executor.migrate(AFTER)
        quotas = executor.loader.project_state(AFTER).apps.get_model("controlplane", "Quota")
        found = quotas.objects.values_list(
            "user__username",
            "project__name",
            "domain__name",
            "default_for",
            "running_tasks",
            "weight",
            "highest_band",
        )
        assert set(found) == {
            ("ann", None, None, "", 7, 2.0, "production"),
            ("bob", None, None, "", None, 1.0, "production"),
            (None, "red", None, "", None, 1.0, "production"),
            (None, None, "home", "", 9, 1.0, ""),
        }
    finally:
        MigrationExecutor(connection).migrate(latest)
