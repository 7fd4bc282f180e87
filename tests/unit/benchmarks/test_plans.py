"""Logs and plans of PostgreSQL, in the formats of its documentation, give totals and findings."""

import json
from typing import Any

import pytest

from benchmarks.plans.parsing import (
    PlanFinding,
    list_findings,
    normalise,
    read_log,
    render,
    result_rows,
)
from benchmarks.plans.recorder import number_parameters, shorten


def line(message: str, query_id: int = 7, application: str = "cellrun-web") -> str:
    """Return a line of jsonlog, with the keys of its documentation."""
    return json.dumps(
        {
            "timestamp": "2026-01-01 12:00:00.000 UTC",
            "user": "cellrun",
            "dbname": "cellrun",
            "pid": 4711,
            "session_id": "65929a00.1267",
            "line_num": 3,
            "ps": "SELECT",
            "session_start": "2026-01-01 12:00:00 UTC",
            "vxid": "3/2",
            "txid": 0,
            "error_severity": "LOG",
            "message": message,
            "application_name": application,
            "backend_type": "client backend",
            "query_id": query_id,
        }
    )


def test_calls_and_durations_of_a_statement_are_added() -> None:
    (found,) = read_log(
        [
            line("duration: 0.500 ms  statement: SELECT a FROM t WHERE b = 'x'"),
            line("duration: 1.250 ms  statement: SELECT a FROM t WHERE b = 'y'"),
        ]
    )
    assert (found.text, found.calls, found.milliseconds) == (
        "SELECT a FROM t WHERE b = ?",
        2,
        1.75,
    )


def test_steps_of_the_extended_protocol_are_one_call() -> None:
    (found,) = read_log(
        [
            line("duration: 0.25 ms  parse <unnamed>: SELECT $1"),
            line("duration: 0.25 ms  bind <unnamed>: SELECT $1"),
            line("duration: 0.5 ms  execute <unnamed>: SELECT $1"),
        ]
    )
    assert (found.calls, found.milliseconds) == (1, 1.0)


def test_other_connections_other_messages_and_the_recorder_are_left_out() -> None:
    lines = [
        line("duration: 9 ms  statement: SELECT 1", application="psql"),
        line("duration: 9 ms  statement: EXPLAIN (ANALYZE) SELECT 1"),
        line("duration: 9 ms  statement: SAVEPOINT recorded_plan"),
        line("duration: 9 ms  statement: ROLLBACK TO SAVEPOINT recorded_plan"),
        line("connection authorized: user=cellrun"),
    ]
    assert read_log(lines) == []


def test_statements_that_differ_in_the_number_of_constants_are_one() -> None:
    (found,) = read_log(
        [
            line("duration: 1 ms  statement: SELECT a FROM t WHERE b IN (1, 2)", 1),
            line("duration: 1 ms  statement: SELECT a FROM t WHERE b IN (1, 2, 3)", 2),
        ]
    )
    assert (found.text, found.query_ids, found.calls) == (
        "SELECT a FROM t WHERE b IN (?, …)",
        {1, 2},
        2,
    )


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SELECT  a\n  FROM t1 -- why it's so\n WHERE b = 1.5", "SELECT a FROM t1 WHERE b = ?"),
        ("SELECT 'it''s; 5' || \"c2\"", 'SELECT ? || "c2"'),
        (
            "UPDATE t SET a=-1 WHERE b=ANY('{1,2}'::bigint[])",
            "UPDATE t SET a=? WHERE b=ANY(?::bigint[])",
        ),
        ("SELECT $1", "SELECT $1"),
    ],
)
def test_literals_are_replaced(statement: str, expected: str) -> None:
    assert normalise(statement) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("COMMIT", True), ("BEGIN", True), ("", True), ("SELECT 1", False), ("WITH a AS ()", False)],
)
def test_statements_without_a_plan_are_known(text: str, expected: bool) -> None:
    (found,) = read_log([line(f"duration: 1 ms  statement: {text}")])
    assert found.is_utility is expected


def node(kind: str, rows: float, loops: int = 1, **others: Any) -> dict[str, Any]:
    """Return a node as EXPLAIN writes it; rows are the average of its loops."""
    return {"Node Type": kind, "Actual Rows": rows, "Actual Loops": loops, **others}


def test_scan_of_a_big_table_is_found_below_other_nodes_though_it_ends_early() -> None:
    scan = node("Seq Scan", 3, **{"Relation Name": "controlplane_task"})
    plan = node("Limit", 3, Plans=[node("Nested Loop", 3, Plans=[scan])])
    big = {"controlplane_task": 10_001}
    assert list_findings(plan, big) == [PlanFinding("sequential scan", "controlplane_task: 3 rows")]
    assert list_findings(plan, {"controlplane_task": 10_000}) == []


def test_scan_of_a_table_that_has_grown_is_found_by_the_rows_it_reads() -> None:
    removed = {"Relation Name": "controlplane_job", "Rows Removed by Filter": 1_000}
    assert list_findings(node("Seq Scan", 0, **removed), {}) == []
    assert [one.kind for one in list_findings(node("Seq Scan", 1, **removed), {})] == [
        "sequential scan"
    ]
    # A small table on the inner side of a loop.
    assert list_findings(node("Seq Scan", 100, 500, **{"Relation Name": "cell"}), {}) == []


def test_big_table_that_is_read_whole_by_an_index_is_found() -> None:
    def found(rows: float, **more: Any) -> list[str]:
        names = {"Relation Name": "controlplane_task", "Index Name": "i", **more}
        plan = node("Index Only Scan", rows, **names)
        return [one.kind for one in list_findings(plan, {"controlplane_task": 20_000})]

    assert found(20_000) == ["whole index"]
    assert found(10_001) == ["whole index"]
    # By its condition, by an index of few rows, or in the order of the index until a page is full.
    assert found(20_000, **{"Index Cond": "(id = 7)"}) == []
    assert found(9_999) == []


def test_parameters_of_a_prepared_statement_are_numbered() -> None:
    assert number_parameters("a = %s AND b LIKE '%%' AND c = %s", [5, "x"]) == (
        "a = $1 AND b LIKE '%' AND c = $2",
        [5, "x"],
    )
    named = "a = %(b)s OR a = %(a)s OR c = %(b)s"
    assert number_parameters(named, {"a": 1, "b": 2}) == ("a = $1 OR a = $2 OR c = $1", [2, 1])


def test_index_scan_that_discards_most_rows_is_found() -> None:
    def plan(kept: float, removed: float, loops: int = 1) -> dict[str, Any]:
        names = {"Relation Name": "t", "Index Name": "i", "Rows Removed by Filter": removed}
        return node("Index Scan", kept, loops, **names)

    assert list_findings(plan(10, 991), {}) == []
    assert list_findings(plan(2, 300, loops=5), {}) == [
        PlanFinding("discarded rows", "t by i: 10 of 1,510 rows")
    ]
    assert list_findings(plan(200, 1_700), {}) == []


def test_large_sorts_and_sorts_on_disk_are_found() -> None:
    assert list_findings(node("Sort", 10_000, **{"Sort Space Type": "Memory"}), {}) == []
    assert [one.text for one in list_findings(node("Sort", 10_001), {})] == ["10,001 rows"]
    on_disk = node("Sort", 9, **{"Sort Space Type": "Disk"})
    assert [one.text for one in list_findings(on_disk, {})] == ["9 rows on disk"]


def test_plan_is_rendered_with_rows_loops_and_blocks() -> None:
    plan = node(
        "ModifyTable",
        0,
        Operation="Update",
        **{"Relation Name": "controlplane_task", "Shared Hit Blocks": 12, "Shared Read Blocks": 0},
        Plans=[
            node(
                "Index Scan",
                1,
                3,
                **{
                    "Relation Name": "controlplane_task",
                    "Index Name": "task_pkey",
                    "Rows Removed by Filter": 2,
                },
            ),
            node("Hash Join", 0, 0, **{"Join Type": "Left"}),
        ],
    )
    assert render(plan) == [
        "Update on task (rows=0 loops=1 hit=12)",
        "  Index Scan using task_pkey on task (rows=1 loops=3 removed=6)",
        "  Hash Join (Left) (never executed)",
    ]
    assert result_rows(plan) == 3


def test_stored_plan_has_no_outputs_and_no_long_literals() -> None:
    numbers = ",".join(map(str, range(1_000)))
    plan = node(
        "Index Scan",
        1,
        Output=["id"],
        **{"Index Cond": f"(id = ANY ('{{{numbers}}}'::bigint[]))"},
        Plans=[node("Result", 1, Output=["1"])],
    )
    assert shorten(plan) == {
        "Node Type": "Index Scan",
        "Actual Rows": 1,
        "Actual Loops": 1,
        "Index Cond": "(id = ANY ('…'::bigint[]))",
        "Plans": [{"Node Type": "Result", "Actual Rows": 1, "Actual Loops": 1}],
    }
