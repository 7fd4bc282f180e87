"""Counts over many rows that pages for people show, each in one statement that an index serves."""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.contract.states import TaskState
from controlplane.domain.state.states import CallbackState
from controlplane.queries.sql import rows


@dataclass(frozen=True, slots=True)
class Overview:
    """How the whole system stands."""

    pending_tasks: int
    active: dict[int, int]
    stopping: int
    cells: dict[str, int]
    open_alerts: int
    callbacks: dict[str, int]
    resolving: int


def count_tasks_of_jobs(job_ids: Sequence[int]) -> dict[int, dict[int, int]]:
    """Tasks per state number of each job, from the counts of its groups."""
    statement = """
        SELECT g.job_id, c.state - 1, sum(c.n)::bigint
        FROM controlplane_taskgroup g, unnest(g.counts) WITH ORDINALITY AS c(n, state)
        WHERE g.job_id = ANY(%s) AND c.n > 0 GROUP BY 1, 2
        """
    counts: dict[int, dict[int, int]] = {job_id: {} for job_id in job_ids}
    for job_id, state, number in rows(statement, [list(job_ids)]):
        counts[job_id][state] = number
    return counts


def count_held_attempts(cell_ids: Sequence[int]) -> dict[int, int]:
    """Attempts that hold a cell's capacity, per cell."""
    statement = """
        SELECT cell_id, count(*) FROM controlplane_attempt
        WHERE cell_id = ANY(%s) AND released_at IS NULL GROUP BY cell_id
        """
    return dict(rows(statement, [list(cell_ids)]))


def count_open_alerts() -> int:
    """Return the open alerts."""
    [(number,)] = rows("SELECT count(*) FROM controlplane_alert WHERE cleared_at IS NULL")
    return int(number)


def count_open_callbacks() -> dict[str, int]:
    """Return the counts of waiting and claimed callbacks, by state."""
    # Each half by a partial index of its own: what is over is never read.
    [(waiting, claimed)] = rows(
        """
        SELECT (SELECT count(*) FROM controlplane_callback WHERE state = 'waiting'),
               (SELECT count(*) FROM controlplane_callback WHERE state = 'claimed')
        """
    )
    return {CallbackState.WAITING: int(waiting), CallbackState.CLAIMED: int(claimed)}


def count_resolving() -> int:
    """Return the count of one-off tasks that are RESOLVING."""
    [(number,)] = rows("SELECT count(*) FROM controlplane_oneoff WHERE claim IS NOT NULL")
    return int(number)


def load_overview() -> Overview:
    """The figures of the first page."""
    [(pending,)] = rows(
        "SELECT count(*) FROM controlplane_task WHERE state = %s AND NOT attempt_open",
        [int(TaskState.PENDING)],
    )
    held = rows(
        """
        SELECT CASE WHEN finished_at IS NULL THEN state END, count(*)
        FROM controlplane_attempt WHERE released_at IS NULL GROUP BY 1
        """
    )
    by_state = {state: number for state, number in held if state is not None}
    return Overview(
        pending_tasks=int(pending),
        active=by_state,
        stopping=sum(number for state, number in held if state is None),
        cells=dict(rows("SELECT state, count(*) FROM controlplane_cell GROUP BY 1 ORDER BY 1")),
        open_alerts=count_open_alerts(),
        callbacks=count_open_callbacks(),
        resolving=count_resolving(),
    )
