"""The metrics of `/metrics`: their names, labels and meanings, which stay the same over versions.

docs/metrics.md is generated from this table; a test compares it with what web serves.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Metric:
    """A gauge: its labels, what it measures, and its notes for the page, in Markdown."""

    labels: tuple[str, ...]
    meaning: str
    notes: str = ""


LABELS: Mapping[str, str] = MappingProxyType(
    {
        "pool": "name of a pool",
        "band": "`production`, `interactive` or `batch`",
        "resource": "`cpu_millis` (thousandths of a core), `memory_mib`, `disk_mib`, `gpu`, or the"
        " name of another resource of cells",
        "state": "of a task, a cell or a callback ([states](states.md))",
        "outcome": "`succeeded`; `failed`: FAILED, WORKER_FAILED or UNSCHEDULABLE; `killed`:"
        " KILLED or PREEMPTED",
        "percentile": "`50` or `95`",
        "tick": "`placement`, `convergence`, `callbacks` or `retention`",
        "phase": "a phase of that tick",
        "what": "an action of that tick; of `cellrun_refusals_audited`: `login` or `token`",
        "kind": "a [kind of alert](troubleshooting.md#alerts)",
    }
)
"""Every label, with its values."""

_SAMPLED = "As of the last sample."
_FIVE_MINUTES = "Of the samples of the last five minutes."

METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "cellrun_tasks_open": Metric(("pool", "state"), "Tasks that have not ended."),
        "cellrun_jobs_open": Metric(("pool",), "Jobs that have not ended."),
        "cellrun_pool_waiting_tasks": Metric(("pool", "band"), "PENDING tasks.", _SAMPLED),
        "cellrun_pool_stuck_tasks": Metric(
            ("pool", "band"), "PENDING tasks that no cell of the pool can run.", _SAMPLED
        ),
        "cellrun_pool_held_attempts": Metric(
            ("pool", "band"), "Attempts that hold capacity.", _SAMPLED
        ),
        "cellrun_pool_used": Metric(
            ("pool", "resource"), "Resources that attempts hold.", _SAMPLED
        ),
        "cellrun_pool_capacity": Metric(
            ("pool", "resource"), "Resources of READY cells.", _SAMPLED
        ),
        "cellrun_pool_wanted": Metric(
            ("pool", "resource"),
            "Resources that attempts hold, and those that waiting tasks need which more cells"
            " could run.",
            f"{_SAMPLED} See [autoscaling](#autoscaling).",
        ),
        "cellrun_pool_recent_starts": Metric(("pool",), "Starts of programs.", _FIVE_MINUTES),
        "cellrun_pool_recent_ends": Metric(
            ("pool", "outcome"), "Tasks that ended, by outcome.", _FIVE_MINUTES
        ),
        "cellrun_pool_recent_latency_seconds": Metric(
            ("pool", "percentile"),
            "Percentile of the time from when a task could start to its first start.",
            f"{_FIVE_MINUTES} Absent if no task started.",
        ),
        "cellrun_cells": Metric(("state",), "Enrolled cells."),
        "cellrun_tick_age_seconds": Metric(("tick",), "Time since the last run of a tick ended."),
        "cellrun_tick_last_run_timestamp_seconds": Metric(
            ("tick",), "Unix time at which the last run of a tick ended."
        ),
        "cellrun_tick_duration_seconds": Metric(("tick",), "Duration of the last run of a tick."),
        "cellrun_tick_lag_seconds": Metric(
            ("tick",), "Time by which the last run of a tick began late."
        ),
        "cellrun_tick_phase_seconds": Metric(
            ("tick", "phase"), "Duration of a phase of the last run of a tick."
        ),
        "cellrun_tick_actions": Metric(
            ("tick", "what"),
            "Number of actions of the last run of a tick.",
            "Absent for an action that the last run did not do.",
        ),
        "cellrun_callbacks": Metric(
            ("state",), "Callbacks that are not delivered.", "Waiting, claimed and abandoned ones."
        ),
        "cellrun_callback_overdue_seconds": Metric(
            (), "Time since the most overdue callback was due; 0 if none is overdue."
        ),
        "cellrun_cache_entries": Metric((), "Entries of the result cache."),
        "cellrun_cache_bytes": Metric((), "Size of the results and outputs of these entries."),
        "cellrun_cache_hits": Metric((), "Tasks that got the result of a present entry."),
        "cellrun_tasks_resolving": Metric((), "One-off tasks that are being resolved."),
        "cellrun_jobs_expired": Metric((), "Expired jobs that are not deleted yet."),
        "cellrun_jobs_deleted": Metric((), "Deleted jobs whose rows are not gone yet."),
        "cellrun_alerts_open": Metric((), "Open alerts."),
        "cellrun_alerts": Metric(("kind",), "Open alerts of a kind."),
        "cellrun_refusals_audited": Metric(
            ("what",), "Audit lines of the last hour about failed logins and refused tokens."
        ),
    }
)
"""Every metric by its name, in the order of the page. All are gauges."""
