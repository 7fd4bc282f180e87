"""Record the plans of a process's own statements, at their place and with their parameters.

Before a statement runs, the recorder runs it under EXPLAIN (ANALYZE, BUFFERS) in a savepoint that
it rolls back, so the plan is that of the same rows, locks and statistics; a statement that is
prepared is prepared again, so the plan is the one for any values. It does so for the first calls of
each statement, and then once in a few seconds. PostgreSQL's auto_explain would do the same, but the
embedded PostgreSQL has no extensions.
"""

import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from controlplane.config.database.base import PreparingCursor, as_text

EVERY_SECONDS = 2.0
BURST = 5
"""Calls that are recorded one after the other: those of one statement may have several plans."""
_EXPLAIN = "EXPLAIN (ANALYZE, BUFFERS, VERBOSE, FORMAT JSON) "
_EXPLAINED = re.compile(r"\s*(?:SELECT|WITH|INSERT|UPDATE|DELETE)\b", re.IGNORECASE)
# A rollback to a savepoint does not undo them.
_LASTING = re.compile(r"pg_(?:try_)?advisory|pg_notify|nextval|setval", re.IGNORECASE)
# What VERBOSE adds besides the identifier of the query, and figures that no reader needs.
_KEPT = (
    "Node Type",
    "Operation",
    "Join Type",
    "Subplan Name",
    "CTE Name",
    "Relation Name",
    "Index Name",
    "Index Cond",
    "Filter",
    "Sort Key",
    "Sort Method",
    "Sort Space Type",
    "Plan Rows",
    "Actual Rows",
    "Actual Loops",
    "Rows Removed by Filter",
    "Rows Removed by Index Recheck",
    "Heap Fetches",
    "Shared Hit Blocks",
    "Shared Read Blocks",
    "Temp Written Blocks",
)
_PLACEHOLDER = re.compile(r"%(?:(%)|s|\((\w+)\)s)")
_numbers = itertools.count(1)
_LITERAL = re.compile(r"'(?:[^']|''){24,}'")

Document = Mapping[str, Any]


class Recorder:
    """Wraps the execution of Django's statements; appends a line of JSON for each plan."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._full_at: dict[str, float] = {}

    def __call__(
        self,
        execute: Callable[..., Any],
        sql: Any,
        parameters: Any,
        many: bool,
        context: Mapping[str, Any],
    ) -> Any:
        """Record the plan if it is due, then run the statement."""
        if not many and isinstance(sql, str) and self._is_due(sql):
            is_prepared = isinstance(context["cursor"].cursor, PreparingCursor)
            plan = explain(
                context["connection"].connection, sql, parameters, is_prepared=is_prepared
            )
            if plan is not None:
                self._write({"at": self._clock(), **plan})
        return execute(sql, parameters, many, context)

    def _is_due(self, sql: str) -> bool:
        if not _EXPLAINED.match(sql) or _LASTING.search(sql):
            return False
        now = self._clock()
        with self._lock:
            full_at = max(self._full_at.get(sql, now), now) + EVERY_SECONDS
            if full_at > now + BURST * EVERY_SECONDS:
                return False
            self._full_at[sql] = full_at
        return True

    def _write(self, record: Document) -> None:
        with self._lock, self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")


def explain(
    connection: Any, sql: str, parameters: Any, *, is_prepared: bool = False
) -> dict[str, Any] | None:
    """Run the statement under EXPLAIN without a lasting effect; None if that fails.

    With `is_prepared`, prepare it before.
    """
    status = connection.info.transaction_status
    if status not in (TransactionStatus.IDLE, TransactionStatus.INTRANS):
        return None
    is_open = status == TransactionStatus.INTRANS
    with connection.cursor() as cursor:
        cursor.execute("SAVEPOINT recorded_plan" if is_open else "BEGIN")
        try:
            if is_prepared:
                ((found,),) = _explain_prepared(cursor, sql, parameters)
            else:
                cursor.execute(_EXPLAIN + sql, parameters)
                ((found,),) = cursor.fetchall()
        except psycopg.Error:
            found = None
        cursor.execute("ROLLBACK TO SAVEPOINT recorded_plan" if is_open else "ROLLBACK")
        if is_open:
            cursor.execute("RELEASE SAVEPOINT recorded_plan")
    if found is None:
        return None
    (document,) = json.loads(found) if isinstance(found, str) else found
    return {
        "query_id": document.get("Query Identifier"),
        "sql": sql,
        "milliseconds": document["Execution Time"],
        "planning_milliseconds": document["Planning Time"],
        "plan": shorten(document["Plan"]),
    }


def _explain_prepared(cursor: Any, sql: str, parameters: Any) -> list[tuple[Any]]:
    # One that fails stays prepared.
    name = f"recorded_plan_{next(_numbers)}"
    statement, values = number_parameters(sql, parameters)
    cursor.execute(f"PREPARE {name} AS {statement}")
    listed = f"({', '.join(['%s'] * len(values))})" if values else ""
    cursor.execute(f"{_EXPLAIN}EXECUTE {name} {listed}", [as_text(value) for value in values])
    found = list(cursor.fetchall())
    cursor.execute(f"DEALLOCATE {name}")
    return found


def number_parameters(sql: str, parameters: Any) -> tuple[str, list[Any]]:
    """Return a statement with $1, $2, … as its parameters, and their values."""
    values: list[Any] = []
    numbers: dict[str, int] = {}

    def replace(found: re.Match[str]) -> str:
        percent, name = found.groups()
        if percent:
            return percent
        if name in numbers:
            return f"${numbers[name]}"
        values.append(parameters[name] if name else parameters[len(values)])
        if name:
            numbers[name] = len(values)
        return f"${len(values)}"

    return _PLACEHOLDER.sub(replace, sql), values


def shorten(node: Document) -> dict[str, Any]:
    """Return a node of a plan without what is not shown, and with short literals."""
    kept = {name: _shorten_text(node[name]) for name in _KEPT if name in node}
    if parts := node.get("Plans"):
        kept["Plans"] = [shorten(part) for part in parts]
    return kept


def _shorten_text(value: Any) -> Any:
    return _LITERAL.sub("'…'", value) if isinstance(value, str) else value
