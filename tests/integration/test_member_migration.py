"""Users of an installation without members keep working after the migration."""

from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

BEFORE = [("controlplane", "0006_pool_job_limits")]
AFTER = [("controlplane", "0007_memberships")]
NOW = "2026-01-01T00:00:00Z"


@pytest.mark.django_db(transaction=True)
def test_users_become_submitters_where_they_worked() -> None:
    executor = MigrationExecutor(connection)
    latest = [key for key in executor.loader.graph.leaf_nodes() if key[0] == "controlplane"]
    try:
        executor.migrate(BEFORE)
        make_installation(executor.loader.project_state(BEFORE).apps)
        executor = MigrationExecutor(connection)
        executor.migrate(AFTER)
        new = executor.loader.project_state(AFTER).apps
        memberships = new.get_model("controlplane", "Membership").objects
        found = memberships.values_list("user__username", "domain__name", "project__name", "role")
        assert sorted(found, key=str) == [
            ("ann", "default", None, "submitter"),
            ("ann", None, "genes", "submitter"),
            ("bob", "default", None, "submitter"),
        ]
        one_off = new.get_model("controlplane", "OneOff").objects.get()
        assert (one_off.guid, one_off.project.name) == ("guid", "genes")
        token = new.get_model("controlplane", "ApiToken").objects.get()
        assert (token.role, token.bound_to) == ("submitter", None)
    finally:
        MigrationExecutor(connection).migrate(latest)


def make_installation(apps: Any) -> None:
    """An operator, a user without work, and a user with a one-off task in another domain."""
    users = apps.get_model("auth", "User").objects
    users.create(username="olga", is_superuser=True)
    users.create(username="bob")
    ann = users.create(username="ann")
    domains = apps.get_model("controlplane", "Domain").objects
    home, _ = domains.get_or_create(name="default")
    projects = apps.get_model("controlplane", "Project").objects
    projects.get_or_create(domain=home, name="default")
    genes = projects.create(domain=domains.create(name="lab"), name="genes")
    pool, _ = apps.get_model("controlplane", "Pool").objects.get_or_create(name="default")
    job = apps.get_model("controlplane", "Job").objects.create(
        project=genes,
        owner=ann,
        pool=pool,
        name="job",
        min_available=1,
        spec={},
        spec_digest="0" * 64,
        created_at=NOW,
    )
    apps.get_model("controlplane", "OneOff").objects.create(
        task_id=1, job=job, guid="guid", domain="d"
    )
    apps.get_model("controlplane", "ApiToken").objects.create(
        user=ann, name="t", prefix="cr_", digest="0" * 64, role="submitter", created_at=NOW
    )
