"""What the metrics show: counts of what is alive now, cheap however much is finished."""

from collections.abc import Iterator
from dataclasses import dataclass

from controlplane.contract.states import TaskState
from controlplane.domain.states import OPEN, CellState
from controlplane.queries.sql import rows


@dataclass(frozen=True, slots=True)
class Figure:
    """One sample of a gauge."""

    name: str
    text: str
    labels: dict[str, str]
    value: float


def load_figures() -> Iterator[Figure]:
    """All samples, those of one gauge one after another."""
    yield from _open_tasks()
    yield from _cells()
    yield from _ticks()
    for alerts in rows("SELECT count(*) FROM controlplane_alert WHERE cleared_at IS NULL"):
        yield Figure("cellrun_alerts_open", "Alerts that are not cleared.", {}, alerts[0])


def _open_tasks() -> Iterator[Figure]:
    states = sorted(OPEN)
    # Arrays of PostgreSQL begin at 1, counts at state 0.
    sums = ", ".join(f"coalesce(sum(g.counts[{int(state) + 1}]), 0)" for state in states)
    # In each job's row `finished_at` is empty while it lives: a partial index finds those.
    statement = f"""
        SELECT pool.name, count(DISTINCT j.id), {sums}
        FROM controlplane_pool pool
        LEFT JOIN controlplane_job j ON j.pool_id = pool.id AND j.finished_at IS NULL
        LEFT JOIN controlplane_taskgroup g ON g.job_id = j.id
        GROUP BY pool.name ORDER BY pool.name
    """
    found = rows(statement)
    for pool, *counts in found:
        for state, count in zip(states, counts[1:], strict=True):
            labels = {"pool": pool, "state": TaskState(state).name}
            yield Figure("cellrun_tasks_open", "Tasks that have not ended.", labels, count)
    for pool, jobs, *_ in found:
        yield Figure("cellrun_jobs_open", "Jobs that have not ended.", {"pool": pool}, jobs)


def _cells() -> Iterator[Figure]:
    found = dict(rows("SELECT state, count(*) FROM controlplane_cell GROUP BY state"))
    for state in CellState:
        yield Figure("cellrun_cells", "Enrolled cells.", {"state": state}, found.get(state, 0))


def _ticks() -> Iterator[Figure]:
    found = rows(
        """
        SELECT name, extract(epoch FROM clock_timestamp() - finished_at)
        FROM controlplane_tickstate WHERE finished_at IS NOT NULL ORDER BY name
        """
    )
    for name, age in found:
        text = "Seconds since a tick was last through."
        yield Figure("cellrun_tick_age_seconds", text, {"tick": name}, float(age))
