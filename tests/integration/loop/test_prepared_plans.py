"""Prepared statements of a task's life read what has ended by keys, whatever their values are."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Job
from controlplane.queries.sql import decoded, execute, rows
from tests.integration.loop.conftest import FakeCell, Loop

ENDED = 20_000
GROWING = ("job", "taskgroup", "task", "attempt", "transition", "auditline")
# The least that the life of a task takes: its submission, placement, and the reports.
LEAST_STATEMENTS = 35

_COPY = """
INSERT INTO controlplane_{table} OVERRIDING SYSTEM VALUE
SELECT (jsonb_populate_record(t, jsonb_build_object({changes}))).*
FROM controlplane_{table} t, generate_series(1, %s) n WHERE t.{column} = %s
"""
_JOB = "1000000 + n"
_UID = "'00000000-0000-0000-0000-' || lpad(n::text, 12, '0')"
_COPIES = (
    ("job", "id", f"'id', {_JOB}"),
    ("taskgroup", "job_id", f"'id', {_JOB}, 'job_id', {_JOB}"),
    (
        "task",
        "job_id",
        f"'id', {_JOB}, 'job_id', {_JOB}, 'group_id', {_JOB}, 'attempt_uid', {_UID}",
    ),
    (
        "attempt",
        "job_id",
        f"'uid', {_UID}, 'job_id', {_JOB}, 'group_id', {_JOB}, 'task_id', {_JOB}",
    ),
)


def live(loop: Loop, cell: FakeCell, jobs: list[Job]) -> None:
    loop.place()
    held = list(Attempt.objects.filter(released_at=None))
    assert len(held) == len(jobs)
    cell.beat(*held)
    for state, gone in ((S.RUNNING, False), (S.SUCCEEDED, True)):
        code = 0 if gone else None
        reports = [AttemptReport(str(one.uid), 0, state, gone=gone, exit_code=code) for one in held]
        cell.report(*reports)
    assert {loop.state(job) for job in jobs} == {"SUCCEEDED"}


def scans(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "Relation Name" in node:
        yield node
    for part in node.get("Plans", ()):
        yield from scans(part)


@pytest.mark.parametrize("is_analyzed", [True, False])
def test_no_prepared_statement_reads_all_that_has_ended(
    loop: Loop, many_slots: None, is_analyzed: bool
) -> None:
    cell = loop.cell()
    first = loop.submit()
    live(loop, cell, [first])
    for table, column, changes in _COPIES:
        statement = _COPY.format(table=table, column=column, changes=changes)
        assert execute(statement, [ENDED, first.pk]) == ENDED
    if is_analyzed:
        execute("VACUUM ANALYZE")
    connection.close()
    live(loop, cell, [loop.submit(name=f"job-{n}") for n in range(3)])
    texts = [text for (text,) in rows("SELECT statement FROM pg_prepared_statements")]
    assert len(texts) >= LEAST_STATEMENTS
    partial = {
        name
        for (name,) in rows(
            "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
            " WHERE i.indpred IS NOT NULL"
        )
    }
    read = []
    for text in texts:
        if not text.lstrip().startswith(("SELECT", "WITH", "INSERT", "UPDATE", "DELETE")):
            continue
        # Double the percent signs: this text has $1 and no placeholders of the driver.
        ((plans,),) = rows(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {text}".replace("%", "%%"))
        read += [
            (node["Node Type"], node["Relation Name"], node.get("Index Name"), text)
            for node in scans(decoded(plans)[0]["Plan"])
            if node["Relation Name"].removeprefix("controlplane_") in GROWING
            and node["Node Type"] not in ("ModifyTable", "Bitmap Heap Scan")
            and "Index Cond" not in node
            and node.get("Index Name") not in partial
        ]
    assert read == []
