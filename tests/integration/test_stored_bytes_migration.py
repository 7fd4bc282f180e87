"""After an upgrade, the artifacts that projects have already count for them."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from controlplane.contract.artifacts import MAX_FILE_BYTES, path_of
from controlplane.contract.states import TaskState as S
from controlplane.models import Project, StoredSize, StoredTotal
from controlplane.queries.sql import scalar
from controlplane.queries.tenancy.stored_bytes import count_stored_bytes

BEFORE = [("controlplane", "0011_cell_secret_key_id")]
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
# With artifacts in the store and elsewhere, without any, without details, and of a cache entry.
STORED, EXTERNAL, EMPTY, BARE, CACHED = (UUID(int=number) for number in range(1, 6))
# With sizes that a hostile cell reported to an earlier version.
NEGATIVE, HUGE = (UUID(int=number) for number in range(6, 8))


def output(uid: UUID, name: str, size: int, uri: str = "") -> dict[str, object]:
    return {"name": name, "size": size, "sha256": "0" * 64, "uri": uri or path_of(str(uid), name)}


LOCKED = """
SELECT count(*) FROM pg_locks
WHERE relation = 'controlplane_quota'::regclass AND mode = 'AccessExclusiveLock'
"""


@pytest.mark.django_db(transaction=True)
def test_quotas_are_readable_while_present_artifacts_are_counted() -> None:
    """The old control plane places tasks during the upgrade, and reads the quotas for it."""
    locks: list[int] = []

    def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if "INSERT INTO controlplane_stored" in sql:
            locks.append(scalar(LOCKED))
        return execute(sql, params, many, context)

    MigrationExecutor(connection).migrate(BEFORE)
    with connection.execute_wrapper(watch):
        call_command("migrate", verbosity=0)
    assert locks == [0, 0]


@pytest.mark.django_db(transaction=True)
def test_present_artifacts_count_and_files_elsewhere_do_not() -> None:
    executor = MigrationExecutor(connection)
    executor.migrate(BEFORE)
    try:
        model = executor.loader.project_state(BEFORE).apps.get_model
        domain = model("controlplane", "Domain").objects.create(name="default")
        project = model("controlplane", "Project").objects.create(domain=domain, name="default")
        job = model("controlplane", "Job").objects.create(
            project=project,
            owner=model("auth", "User").objects.create(username="user-1"),
            pool=model("controlplane", "Pool").objects.create(name="default"),
            name="job",
            band=2,
            min_available=1,
            spec={},
            spec_digest="",
            created_at=NOW,
        )
        details = {
            STORED: {"outputs": [output(STORED, "a", 5), output(STORED, "b", 7)]},
            EXTERNAL: {"outputs": [output(EXTERNAL, "a", 11, "s3://bucket/a")]},
            EMPTY: {"outputs": None},
            BARE: None,
            NEGATIVE: {"outputs": [output(NEGATIVE, "a", -5), output(NEGATIVE, "b", 2)]},
            HUGE: {"outputs": [output(HUGE, name, 2**63 - 1) for name in ("a", "b")]},
        }
        for number, (uid, found) in enumerate(details.items(), 1):
            model("controlplane", "Attempt").objects.create(
                uid=uid,
                task_id=number,
                group_id=1,
                job_id=job.pk,
                cell_id=1,
                number=1,
                state=S.SUCCEEDED,
                details=found,
                start_before=NOW,
                created_at=NOW,
                state_since=NOW,
                finished_at=NOW,
                released_at=NOW,
            )
        for uid, size in ((STORED, 12), (CACHED, 13)):
            model("controlplane", "CacheEntry").objects.create(
                identity=uid,
                domain=domain,
                project=project,
                key="key",
                job_id=job.pk,
                task_id=1,
                attempt_uid=uid,
                prefix="",
                size_bytes=size,
                created_at=NOW,
                used_at=NOW,
            )
    finally:
        call_command("migrate", verbosity=0)
    assert dict(StoredSize.objects.values_list("attempt_uid", "file_bytes")) == {
        STORED: 12,
        CACHED: 13,
        NEGATIVE: 2,
        HUGE: 2 * MAX_FILE_BYTES,
    }
    key, total = Project.objects.get().pk, 27 + 2 * MAX_FILE_BYTES
    assert count_stored_bytes([key]) == {key: total}
    assert list(StoredTotal.objects.values_list("project_id", "total_bytes")) == [(key, total)]
