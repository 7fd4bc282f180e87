"""Load what tells whether a page changed since it was rendered."""

from dataclasses import dataclass

from controlplane.queries.sql import first_row


@dataclass(frozen=True, slots=True)
class HistoryScope:
    """The part of the history on which a page depends: of a job, of a task, or all of it.

    `cell_id`: all of it, and the changes of a cell.
    """

    job_id: int | None = None
    task_id: int | None = None
    cell_id: int | None = None


@dataclass(frozen=True, slots=True)
class PageVersion:
    """The newest change of state, the newest alert, and the number of open alerts.

    `cell_change_id`: the newest change of the cell of the scope.
    """

    change_id: int | None
    alert_id: int | None
    open_alerts: int
    cell_change_id: int | None


def load_page_version(scope: HistoryScope) -> PageVersion:
    """Return the version of a page, by one statement on indexes."""
    where, parameters = "", list[int]()
    if scope.task_id is not None:
        where, parameters = "WHERE task_id = %s", [scope.task_id]
    elif scope.job_id is not None:
        where, parameters = "WHERE job_id = %s", [scope.job_id]
    found = first_row(
        f"""
        SELECT (SELECT max(id) FROM controlplane_transition {where}) AS change_id,
               (SELECT max(id) FROM controlplane_alert) AS alert_id,
               (SELECT count(*) FROM controlplane_alert WHERE cleared_at IS NULL) AS open_alerts,
               (SELECT max(id) FROM controlplane_cellchange WHERE cell_id = %s) AS cell_change_id
        """,
        [*parameters, scope.cell_id],
    )
    assert found is not None
    return PageVersion(*found)
