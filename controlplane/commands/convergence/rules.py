"""The rules of convergence in order; the order is the specification."""

from controlplane.commands.convergence import (
    alerts,
    cell_health,
    deletion,
    dependencies,
    endings,
    images,
    lost_cells,
    orphans,
    repairs,
    resolutions,
)
from controlplane.commands.convergence.late_tasks import EndLateTasks
from controlplane.commands.convergence.rule import ConvergenceRule
from controlplane.domain.convergence import (
    drained,
    overruns,
    stuck_builds,
    unanswered,
    unconfirmed_stops,
    unplaced,
)
from controlplane.domain.convergence import (
    lost_cells as attempts_of_lost_cells,
)
from controlplane.domain.convergence.task_rule import TaskRule


def _late(number: int, rule: TaskRule) -> ConvergenceRule:
    return ConvergenceRule(number, rule.name, (rule.name,), EndLateTasks(rule), waits=True)


RULES: tuple[ConvergenceRule, ...] = (
    ConvergenceRule(
        1,
        "lost_cells",
        ("silent_leases", "held_losses"),
        lost_cells.lose_silent_cells,
        waits=True,
    ),
    _late(1, attempts_of_lost_cells.RULE),
    ConvergenceRule(
        1, "held_attempts", ("held_attempts", "freed_attempts"), lost_cells.watch_held_attempts
    ),
    _late(2, unanswered.RULE),
    _late(3, stuck_builds.RULE),
    _late(4, overruns.RULE),
    _late(5, drained.RULE),
    _late(5, unplaced.RULE),
    _late(6, unconfirmed_stops.RULE),
    ConvergenceRule(
        6,
        "stuck_stops",
        ("stuck_stops", "failing_cells", "cleared_cells"),
        cell_health.judge_cells,
        waits=True,
    ),
    ConvergenceRule(6, "images", ("images",), images.hold),
    ConvergenceRule(
        7, "dependencies", ("blocked_jobs", "waiting_jobs"), dependencies.follow, on_wake=True
    ),
    ConvergenceRule(
        8,
        "endings",
        ("orphaned_jobs", "bouncing_jobs", "ending_jobs"),
        endings.go_on,
        on_wake=True,
    ),
    ConvergenceRule(10, "resolutions", ("resolving", "claimed_callbacks"), resolutions.let_go),
    ConvergenceRule(11, "expiry", ("expired_jobs",), deletion.delete_expired_jobs, waits=True),
    # Always: files may be left of what was deleted before.
    ConvergenceRule(11, "deletion", ("deleted_jobs",), deletion.purge, waits=True, always=True),
    ConvergenceRule(11, "old_records", ("old_records",), deletion.forget_records, waits=True),
    ConvergenceRule(11, "strays", ("strays",), deletion.sweep, waits=True),
    ConvergenceRule(12, "settling", ("unsettled_jobs",), repairs.settle),
    ConvergenceRule(12, "recount", ("recount",), repairs.recount, is_repair=True),
    ConvergenceRule(12, "orphans", ("orphans",), orphans.remove, is_repair=True),
    ConvergenceRule(12, "alerts", ("quiet_alerts",), alerts.close_quiet),
)
"""Rule 9 is of the cache, which there is not yet."""
