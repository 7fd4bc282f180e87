"""Load what tells whether a page changed since it was rendered."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from controlplane.queries.sql import first_row


@dataclass(frozen=True, slots=True)
class HistoryScope:
    """The part of the history on which a page depends: of a job, of a task, or all of it.

    All of it includes the audit log, which has a row for each change of what users configure.
    `cell_id`: all of it, and the changes of a cell.
    """

    job_id: int | None = None
    task_id: int | None = None
    cell_id: int | None = None


@dataclass(frozen=True, slots=True)
class PageVersion:
    """The newest changes of state, the newest alert, and the number of open alerts.

    `changes`: the sum of the newest ids, since ids are not in the order of commits.
    `cell_changes`: the same of the cell of the scope. `audit`: the same of the audit log, unless
    the scope is a job or a task.
    """

    changes: Decimal | None
    alert_id: int | None
    open_alerts: int
    cell_changes: Decimal | None
    audit: Decimal | None


# A transaction that commits later than one with larger ids has one of the newest ids.
_NEWEST = 100


def load_page_version(scope: HistoryScope) -> PageVersion:
    """Return the version of a page, by one statement on indexes."""
    where, of_cell, parameters = "", "NULL", list[int]()
    audit = _sum_of_newest("auditline")
    if scope.task_id is not None:
        where, audit, parameters = "WHERE task_id = %s", "NULL", [scope.task_id]
    elif scope.job_id is not None:
        where, audit, parameters = "WHERE job_id = %s", "NULL", [scope.job_id]
    if scope.cell_id is not None:
        of_cell = _sum_of_newest("cellchange", "WHERE cell_id = %s")
        parameters = [*parameters, scope.cell_id]
    return _load(_sum_of_newest("transition", where), of_cell, audit, parameters)


def load_newest_changes() -> PageVersion:
    """Return the version of a page that depends on everything in the installation."""
    changes, of_cells = _sum_of_newest("transition"), _sum_of_newest("cellchange")
    return _load(changes, of_cells, _sum_of_newest("auditline"))


def _load(changes: str, of_cells: str, audit: str, parameters: Sequence[int] = ()) -> PageVersion:
    found = first_row(
        f"""
        SELECT {changes} AS changes, {_ALERTS}, {of_cells} AS cell_changes, {audit} AS audit
        """,
        parameters,
    )
    assert found is not None
    return PageVersion(*found)


_ALERTS = """
(SELECT max(id) FROM controlplane_alert) AS alert_id,
(SELECT count(*) FROM controlplane_alert WHERE cleared_at IS NULL) AS open_alerts
"""


def _sum_of_newest(table: str, where: str = "") -> str:
    return f"""(
        SELECT sum(id) FROM (
            SELECT id FROM controlplane_{table} {where} ORDER BY id DESC LIMIT {_NEWEST}
        ) newest
    )"""
