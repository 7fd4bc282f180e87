"""The rules of convergence in order; the order is the specification."""

from controlplane.commands.convergence import (
    cache,
    cells,
    deletion,
    housekeeping,
    jobs,
    orders,
    orphans,
    repairs,
    samples,
)
from controlplane.commands.convergence.late_tasks import EndLateTasks
from controlplane.commands.convergence.runner import ConvergenceRule
from controlplane.domain.convergence import task_rules
from controlplane.domain.convergence.task_rules import TaskRule


def _late(rule: TaskRule) -> ConvergenceRule:
    return ConvergenceRule(rule.number, rule.name, (rule.name,), EndLateTasks(rule), waits=True)


RULES: tuple[ConvergenceRule, ...] = (
    ConvergenceRule(
        1,
        "lost_cells",
        ("silent_leases", "held_losses"),
        cells.lose_silent_cells,
        waits=True,
    ),
    _late(task_rules.ATTEMPTS_OF_LOST_CELLS),
    ConvergenceRule(
        1, "held_attempts", ("held_attempts", "freed_attempts"), cells.watch_held_attempts
    ),
    _late(task_rules.UNANSWERED),
    _late(task_rules.STUCK_BUILDS),
    _late(task_rules.OVERRUNS),
    _late(task_rules.DRAINED),
    _late(task_rules.UNPLACED),
    _late(task_rules.UNCONFIRMED_STOPS),
    ConvergenceRule(
        6,
        "stuck_stops",
        ("stuck_stops", "failing_cells", "cleared_cells"),
        cells.judge_cells,
        waits=True,
    ),
    ConvergenceRule(6, "images", ("images",), cells.hold_images_back),
    ConvergenceRule(7, "dependencies", ("blocked_jobs", "waiting_jobs"), jobs.follow, on_wake=True),
    ConvergenceRule(
        8,
        "endings",
        ("orphaned_jobs", "requeuing_jobs", "ending_jobs"),
        jobs.go_on,
        on_wake=True,
    ),
    ConvergenceRule(9, "cache_store", ("cache_stores",), cache.store, on_wake=True),
    ConvergenceRule(9, "cache_reservations", ("cache_waiters",), cache.pass_keys_on, on_wake=True),
    ConvergenceRule(9, "cache_lookup", ("cache_lookups",), cache.find_results, on_wake=True),
    ConvergenceRule(
        10, "resolutions", ("resolving", "claimed_callbacks"), housekeeping.release_claims
    ),
    # After a gap, clients and cells of open sessions have connected again before it runs.
    ConvergenceRule(
        10, "exec_sessions", ("stale_sessions",), housekeeping.end_exec_sessions, waits=True
    ),
    ConvergenceRule(11, "expiry", ("expired_jobs",), deletion.delete_expired_jobs, waits=True),
    ConvergenceRule(11, "usage", ("uncounted_usage",), deletion.count_settled),
    # Always: files may be left of what was deleted before.
    ConvergenceRule(11, "deletion", ("deleted_jobs",), deletion.purge, waits=True, always=True),
    ConvergenceRule(11, "key_rotations", ("key_rotations",), cells.end_rotations, waits=True),
    ConvergenceRule(11, "cache_eviction", ("old_entries",), deletion.evict_entries, waits=True),
    ConvergenceRule(11, "cache_size", ("cache_size",), deletion.limit_cache, waits=True),
    ConvergenceRule(11, "old_records", ("old_records",), deletion.forget_records, waits=True),
    ConvergenceRule(11, "orphan_files", ("orphan_files",), deletion.sweep, waits=True),
    ConvergenceRule(11, "stored_bytes", ("uncounted_sizes",), deletion.count_stored_bytes),
    ConvergenceRule(12, "settling", ("unsettled_jobs",), repairs.settle),
    ConvergenceRule(12, "recount", ("recount",), repairs.recount, is_repair=True),
    ConvergenceRule(
        12, "stored_totals", ("stored_totals",), repairs.recount_stored_bytes, is_repair=True
    ),
    ConvergenceRule(12, "orphans", ("orphans",), orphans.remove, is_repair=True),
    ConvergenceRule(12, "alerts", ("quiet_alerts",), housekeeping.close_quiet_alerts),
    ConvergenceRule(13, "samples", ("samples",), samples.take_samples),
    ConvergenceRule(14, "bulk_operations", ("bulk_operations",), orders.run_bulk_operations),
    ConvergenceRule(15, "schedules", ("due_schedules", "ready_firings"), orders.fire_schedules),
)
