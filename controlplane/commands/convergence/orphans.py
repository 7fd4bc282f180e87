"""Rule 12: delete rows without a parent where no foreign key does."""

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from types import MappingProxyType

from controlplane.commands.convergence.runner import RuleContext
from controlplane.commands.state.cursors import count_repairs, save_walk
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.queries.convergence.cursors import load_cursor
from controlplane.queries.sql import rows

ROWS_PER_PAGE = 20_000
"""Rows checked for orphans in one tick: some 30 ms."""

_PAGE = """
    WITH page AS MATERIALIZED (
        SELECT {key} AS key, {columns} FROM {table}
        WHERE %(after)s = '' OR {key} > NULLIF(%(after)s, '')::{kind} ORDER BY {key} LIMIT %(limit)s
    ), gone AS (
        DELETE FROM {table} x
        WHERE x.{key} = ANY(ARRAY(SELECT p.key FROM page p WHERE {orphaned})) RETURNING 1
    )
    SELECT (SELECT count(*) FROM page),
           -- The hyphens of a uid are removed so that it fits beside the name of its table.
           (SELECT translate(key::text, '-', '') FROM page ORDER BY key DESC LIMIT 1),
           (SELECT count(*) FROM gone)
    """
# OFFSET 0: the parent of each row by its key. PostgreSQL would read all parents for a page.
_NO_JOB = "NOT EXISTS (SELECT 1 FROM controlplane_job j WHERE j.id = p.job_id OFFSET 0)"
# A deleted job's rows are on their way, in an order of their own.
_NO_TASK = f"""
    ({_NO_JOB} OR (NOT EXISTS (SELECT 1 FROM controlplane_task t WHERE t.id = p.task_id OFFSET 0)
                   AND EXISTS (SELECT 1 FROM controlplane_job j
                               WHERE j.id = p.job_id AND j.deleted_at IS NULL OFFSET 0)))
    """


# They are set to zero, so that convergence subtracts them from the total of their project.
_ORPHANED_SIZES = f"""
    WITH page AS MATERIALIZED (
        SELECT id AS key, job_id, attempt_uid FROM controlplane_storedsize
        WHERE %(after)s = '' OR id > NULLIF(%(after)s, '')::bigint ORDER BY id LIMIT %(limit)s
    ), gone AS (
        UPDATE controlplane_storedsize x
        SET file_bytes = 0, stdout_bytes = 0, stderr_bytes = 0, is_uncounted = true
        WHERE x.id = ANY(ARRAY(SELECT p.key FROM page p WHERE {_NO_JOB}))
          AND x.file_bytes + x.stdout_bytes + x.stderr_bytes > 0
          AND NOT EXISTS (SELECT 1 FROM controlplane_cacheentry e
                          WHERE e.attempt_uid = x.attempt_uid)
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM page),
           (SELECT key::text FROM page ORDER BY key DESC LIMIT 1),
           (SELECT count(*) FROM gone)
    """


def _page_of(
    table: str,
    key: str = "id",
    *,
    kind: str = "bigint",
    columns: str = "job_id",
    orphaned: str = _NO_JOB,
) -> str:
    return _PAGE.format(
        table=f"controlplane_{table}", key=key, kind=kind, columns=columns, orphaned=orphaned
    )


PARENTLESS = MappingProxyType(
    {
        "task": _page_of("task"),
        "attempt": _page_of(
            "attempt", "uid", kind="uuid", columns="job_id, task_id", orphaned=_NO_TASK
        ),
        "transition": _page_of("transition"),
        "callback": _page_of("callback"),
        "oneoff": _page_of("oneoff", "task_id", columns="job_id, task_id", orphaned=_NO_TASK),
        "delivery": _page_of(
            "delivery",
            columns="callback_id",
            orphaned="NOT EXISTS (SELECT 1 FROM controlplane_callback k"
            " WHERE k.id = p.callback_id OFFSET 0)",
        ),
        "storedsize": _ORPHANED_SIZES,
    }
)
"""By table, in this order: a statement that removes the orphans of a page, or zeroes their sizes,
and returns the length of the page, its last key and the number of orphans."""


def remove(context: RuleContext) -> Mapping[str, int]:
    """A page of the walk over rows whose links no foreign key holds: those without a parent go."""
    table, _, after = load_cursor("orphans").after.partition(":")
    place = list(PARENTLESS).index(table) if table in PARENTLESS else 0
    removed, reached = run_in_transaction(partial(_remove_page, place, after, context.now))
    save_walk("orphans", after=reached, now=context.now)
    return {"orphans": removed}


def _remove_page(place: int, after: str, now: datetime) -> tuple[int, str]:
    """Check a page of rows, which continues in the next tables.

    Return how many were deleted, and the cursor of the next page.
    """
    tables = list(PARENTLESS)
    left, removed = ROWS_PER_PAGE, 0
    while left > 0 and place < len(tables):
        parameters = {"after": after, "limit": left}
        [(scanned, last, gone)] = rows(PARENTLESS[tables[place]], parameters)
        removed += gone
        is_end = scanned < left
        left -= scanned
        place, after = (place + 1, "") if is_end else (place, last)
    if removed:
        count_repairs("orphans", {"orphans": removed}, now=now)
    return removed, f"{tables[place]}:{after}" if place < len(tables) else ""
