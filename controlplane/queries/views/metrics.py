"""Load the figures of metrics: counts of live objects, at a cost independent of finished ones."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest

from controlplane.contract.states import TaskState
from controlplane.domain.alerts import ALERTS
from controlplane.domain.convergence.latencies import percentile
from controlplane.domain.state.states import OPEN, Band, CellState
from controlplane.queries.sql import decoded, named_rows, rows
from controlplane.queries.views.overviews import count_cells

BASE_RESOURCES = ("cpu_millis", "memory_mib")
"""Resources of which each pool has figures, so that an idle pool has a 0 for autoscalers."""
PERCENTILES = (50, 95)


@dataclass(frozen=True, slots=True)
class Figure:
    """One sample of a gauge of `METRICS`."""

    name: str
    value: float
    labels: dict[str, str] = field(default_factory=dict)


def load_figures() -> Iterator[Figure]:
    """Yield all samples, grouped by gauge."""
    yield from _open_tasks()
    yield from _samples()
    yield from _recent_changes()
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
            yield Figure("cellrun_tasks_open", count, labels)
    for pool, jobs, *_ in found:
        yield Figure("cellrun_jobs_open", jobs, {"pool": pool})


def _samples() -> Iterator[Figure]:
    found = named_rows(
        """
        SELECT p.name AS pool, s.waiting, s.stuck, s.held, s.used, s.capacity, s.wanted
        FROM controlplane_poolsample s JOIN controlplane_pool p ON p.id = s.pool_id
        WHERE s.at = (SELECT max(at) FROM controlplane_poolsample) ORDER BY p.name
        """
    )
    for name, column in (
        ("cellrun_pool_waiting_tasks", "waiting"),
        ("cellrun_pool_stuck_tasks", "stuck"),
        ("cellrun_pool_held_attempts", "held"),
    ):
        for row in found:
            for band, number in zip(Band, getattr(row, column), strict=True):
                yield Figure(name, number, {"pool": row.pool, "band": band.name.lower()})
    columns = ("used", "capacity", "wanted")
    for column in columns:
        for row in found:
            amounts = {name: decoded(getattr(row, name)) for name in columns}
            if amounts[column] is None:
                continue  # taken before samples had this column
            for resource in _named_resources(amounts.values()):
                labels = {"pool": row.pool, "resource": resource}
                yield Figure(f"cellrun_pool_{column}", amounts[column].get(resource, 0), labels)


def _named_resources(amounts: Iterable[dict[str, int] | None]) -> list[str]:
    return sorted({*BASE_RESOURCES, *(name for found in amounts for name in found or ())})


def _recent_changes() -> Iterator[Figure]:
    found = named_rows(
        """
        SELECT p.name AS pool, sum(s.started)::bigint AS started,
               sum(s.succeeded)::bigint AS succeeded, sum(s.failed)::bigint AS failed,
               sum(s.killed)::bigint AS killed, json_agg(s.latencies) AS latencies
        FROM controlplane_poolsample s JOIN controlplane_pool p ON p.id = s.pool_id
        WHERE s.at > now() - interval '5 minutes' GROUP BY p.name ORDER BY p.name
        """
    )
    for row in found:
        yield Figure("cellrun_pool_recent_starts", row.started, {"pool": row.pool})
    for row in found:
        for outcome in ("succeeded", "failed", "killed"):
            labels = {"pool": row.pool, "outcome": outcome}
            yield Figure("cellrun_pool_recent_ends", getattr(row, outcome), labels)
    for row in found:
        counts = [sum(it) for it in zip_longest(*decoded(row.latencies), fillvalue=0)]
        for share in PERCENTILES:
            seconds = percentile(counts, share / 100)
            if seconds is not None:
                labels = {"pool": row.pool, "percentile": str(share)}
                yield Figure("cellrun_pool_recent_latency_seconds", seconds, labels)


def _cells() -> Iterator[Figure]:
    found = count_cells()
    for state in CellState:
        yield Figure("cellrun_cells", found.get(state, 0), {"state": state})


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
    for column in (
        "age_seconds",
        "last_run_timestamp_seconds",
        "duration_seconds",
        "lag_seconds",
    ):
        for row in found:
            value = float(getattr(row, column))
            yield Figure(f"cellrun_tick_{column}", value, {"tick": row.name})
    for row in found:
        for phase, took in sorted(decoded(row.phases).items()):
            labels = {"tick": row.name, "phase": phase}
            yield Figure("cellrun_tick_phase_seconds", float(took) / 1000, labels)
    for row in found:
        for what, number in sorted(decoded(row.counts).items()):
            if isinstance(number, int | float):
                labels = {"tick": row.name, "what": what}
                yield Figure("cellrun_tick_actions", float(number), labels)


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
        yield Figure("cellrun_callbacks", number, {"state": state})
    yield Figure("cellrun_callback_overdue_seconds", max(0.0, float(oldest or 0)))


def _cache() -> Iterator[Figure]:
    [(entries, size, hits)] = rows(
        """
        SELECT count(*), coalesce(sum(size_bytes), 0), coalesce(sum(hits), 0)
        FROM controlplane_cacheentry WHERE evicted_at IS NULL
        """
    )
    yield Figure("cellrun_cache_entries", entries)
    yield Figure("cellrun_cache_bytes", size)
    yield Figure("cellrun_cache_hits", hits)


def _endings() -> Iterator[Figure]:
    [(resolving, expired, deleted)] = rows(
        """
        SELECT (SELECT count(*) FROM controlplane_oneoff WHERE claim IS NOT NULL),
               (SELECT count(*) FROM controlplane_job
                WHERE expires_at <= statement_timestamp() AND deleted_at IS NULL),
               (SELECT count(*) FROM controlplane_job WHERE deleted_at IS NOT NULL)
        """
    )
    yield Figure("cellrun_tasks_resolving", resolving)
    yield Figure("cellrun_jobs_expired", expired)
    yield Figure("cellrun_jobs_deleted", deleted)


def _alerts() -> Iterator[Figure]:
    found: dict[str, int] = dict(
        rows("SELECT kind, count(*) FROM controlplane_alert WHERE cleared_at IS NULL GROUP BY kind")
    )
    yield Figure("cellrun_alerts_open", sum(found.values()))
    for kind in sorted({*ALERTS, *found}):
        yield Figure("cellrun_alerts", found.get(kind, 0), {"kind": kind})


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
    for what in ("login", "token"):
        yield Figure("cellrun_refusals_audited", found.get(f"refuse.{what}", 0), {"what": what})
