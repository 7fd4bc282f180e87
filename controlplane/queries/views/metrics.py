"""Load the figures of metrics: counts of live objects, at a cost independent of finished ones."""

from collections.abc import Iterator
from dataclasses import dataclass

from controlplane.contract.states import TaskState
from controlplane.domain.state.states import OPEN, Band, CellState
from controlplane.queries.sql import decoded, named_rows, rows
from controlplane.queries.views.overviews import count_cells


@dataclass(frozen=True, slots=True)
class Figure:
    """One sample of a gauge."""

    name: str
    text: str
    labels: dict[str, str]
    value: float


def load_figures() -> Iterator[Figure]:
    """Yield all samples, grouped by gauge."""
    yield from _open_tasks()
    yield from _samples()
    yield from _cells()
    yield from _ticks()
    yield from _callbacks()
    yield from _cache()
    yield from _endings()
    yield from _alerts()
    yield from _refusals()


def _open_tasks() -> Iterator[Figure]:
    states = sorted(OPEN)
    # Arrays of PostgreSQL begin at 1, counts at state 0.
    sums = ", ".join(f"coalesce(sum(g.counts[{state + 1}]), 0)" for state in states)
    # A partial index finds the jobs without `finished_at`.
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


def _samples() -> Iterator[Figure]:
    found = named_rows(
        """
        SELECT p.name AS pool, s.waiting, s.stuck, s.held, s.used, s.capacity
        FROM controlplane_poolsample s JOIN controlplane_pool p ON p.id = s.pool_id
        WHERE s.at = (SELECT max(at) FROM controlplane_poolsample) ORDER BY p.name
        """
    )
    for name, column, text in (
        ("cellrun_pool_waiting_tasks", "waiting", "PENDING tasks, as of the last sample."),
        ("cellrun_pool_stuck_tasks", "stuck", "Of these, tasks that no cell of the pool can run."),
        ("cellrun_pool_held_attempts", "held", "Attempts that hold capacity, as of the sample."),
    ):
        for row in found:
            for band, number in zip(Band, getattr(row, column), strict=True):
                yield Figure(name, text, {"pool": row.pool, "band": band.name.lower()}, number)
    for name, column, text in (
        ("cellrun_pool_used", "used", "Resources that attempts hold, as of the last sample."),
        ("cellrun_pool_capacity", "capacity", "Resources of READY cells, as of the last sample."),
    ):
        for row in found:
            for resource, amount in sorted(decoded(getattr(row, column)).items()):
                yield Figure(name, text, {"pool": row.pool, "resource": resource}, amount)


def _cells() -> Iterator[Figure]:
    found = count_cells()
    for state in CellState:
        yield Figure("cellrun_cells", "Enrolled cells.", {"state": state}, found.get(state, 0))


def _ticks() -> Iterator[Figure]:
    found = named_rows(
        """
        SELECT name, extract(epoch FROM clock_timestamp() - finished_at) AS age_seconds,
               extract(epoch FROM finished_at) AS last_run_timestamp_seconds,
               extract(epoch FROM finished_at - started_at) AS duration_seconds,
               lag_seconds, phases, counts
        FROM controlplane_tickstate WHERE finished_at IS NOT NULL ORDER BY name
        """
    )
    gauges = (
        ("cellrun_tick_age_seconds", "age_seconds", "Seconds since a tick was last through."),
        (
            "cellrun_tick_last_run_timestamp_seconds",
            "last_run_timestamp_seconds",
            "When a tick was last through.",
        ),
        (
            "cellrun_tick_duration_seconds",
            "duration_seconds",
            "How long the last run of a tick took.",
        ),
        (
            "cellrun_tick_lag_seconds",
            "lag_seconds",
            "How much later than it should the last run began.",
        ),
    )
    for name, column, text in gauges:
        for row in found:
            labels, value = {"tick": row.name}, float(getattr(row, column))
            yield Figure(name, text, labels, value)
    for row in found:
        for phase, took in sorted(decoded(row.phases).items()):
            text, labels = "Of the last run, by phase.", {"tick": row.name, "phase": phase}
            yield Figure("cellrun_tick_phase_milliseconds", text, labels, float(took))
    for row in found:
        for what, number in sorted(decoded(row.counts).items()):
            if isinstance(number, int | float):
                text, labels = "What the last run did.", {"tick": row.name, "what": what}
                yield Figure("cellrun_tick_count", text, labels, float(number))


def _callbacks() -> Iterator[Figure]:
    # Of ended callbacks only abandoned ones are counted, by an index; others are not read.
    [(waiting, claimed, abandoned, oldest)] = rows(
        """
        SELECT (SELECT count(*) FROM controlplane_callback WHERE state = 'waiting'),
               (SELECT count(*) FROM controlplane_callback WHERE state = 'claimed'),
               (SELECT count(*) FROM controlplane_callback WHERE state = 'abandoned'),
               (SELECT extract(epoch FROM clock_timestamp() - min(due_at))
                FROM controlplane_callback WHERE state = 'waiting')
        """
    )
    counts = {"waiting": waiting, "claimed": claimed, "abandoned": abandoned}
    for state, number in counts.items():
        yield Figure("cellrun_callbacks", "Callbacks by state.", {"state": state}, number)
    text = "For how long the callback that is most overdue has been due; 0 if none is."
    yield Figure("cellrun_callback_overdue_seconds", text, {}, max(0.0, float(oldest or 0)))


def _cache() -> Iterator[Figure]:
    [(entries, size, hits)] = rows(
        """
        SELECT count(*), coalesce(sum(size_bytes), 0), coalesce(sum(hits), 0)
        FROM controlplane_cacheentry WHERE evicted_at IS NULL
        """
    )
    yield Figure("cellrun_cache_entries", "Entries of the result cache.", {}, entries)
    yield Figure("cellrun_cache_bytes", "Size of the results and outputs of entries.", {}, size)
    yield Figure("cellrun_cache_hits", "Tasks that got the result of a present entry.", {}, hits)


def _endings() -> Iterator[Figure]:
    [(resolving, expired, deleted)] = rows(
        """
        SELECT (SELECT count(*) FROM controlplane_oneoff WHERE claim IS NOT NULL),
               (SELECT count(*) FROM controlplane_job
                WHERE expires_at <= clock_timestamp() AND deleted_at IS NULL),
               (SELECT count(*) FROM controlplane_job WHERE deleted_at IS NOT NULL)
        """
    )
    yield Figure("cellrun_tasks_resolving", "One-off tasks being resolved.", {}, resolving)
    text = "Expired jobs that are not deleted yet."
    yield Figure("cellrun_jobs_expired", text, {}, expired)
    text = "Deleted jobs whose rows are not gone yet."
    yield Figure("cellrun_jobs_deleted", text, {}, deleted)


def _alerts() -> Iterator[Figure]:
    found = rows(
        """
        SELECT kind, count(*) FROM controlplane_alert WHERE cleared_at IS NULL
        GROUP BY kind ORDER BY kind
        """
    )
    total = sum(number for _, number in found)
    yield Figure("cellrun_alerts_open", "Alerts that are not closed.", {}, total)
    for kind, number in found:
        yield Figure("cellrun_alerts", "Open alerts by kind.", {"kind": kind}, number)


def _refusals() -> Iterator[Figure]:
    # The index of instants limits the cost to the lines of this hour; clock_timestamp() could not.
    found = dict(
        rows(
            """
            SELECT action, count(*) FROM controlplane_auditline
            WHERE action IN ('refuse.token', 'refuse.login')
              AND at > now() - interval '1 hour'
            GROUP BY action
            """
        )
    )
    text = "Audit lines of the last hour about failed logins and refused tokens."
    for what in ("login", "token"):
        labels = {"what": what}
        yield Figure("cellrun_refusals_audited", text, labels, found.get(f"refuse.{what}", 0))
