"""Rules 14 and 15: process what users have ordered: bulk operations and schedules."""

from collections.abc import Callable, Mapping

from controlplane import clock
from controlplane.commands.bulk import run_bulk_page
from controlplane.commands.convergence.late_tasks import SLICE_SECONDS
from controlplane.commands.convergence.runner import RuleContext
from controlplane.commands.schedules.fire import fire_due
from controlplane.queries.jobs.bulk import list_running


def run_bulk_operations(context: RuleContext) -> Mapping[str, int]:
    """Run a page of each operation, in turns, until all are complete or the time is over."""
    processed, is_over = 0, _timer()
    while running := list_running():
        for operation_id in running:
            if is_over():
                return {"bulk_processed": processed}
            processed += run_bulk_page(operation_id, now=context.now, is_over=is_over)
    return {"bulk_processed": processed}


def fire_schedules(context: RuleContext) -> Mapping[str, int]:
    """Process due instants of schedules until none is left or the time is over."""
    return {"schedules_fired": fire_due(now=context.now, is_over=_timer())}


def _timer() -> Callable[[], bool]:
    until = clock.monotonic() + SLICE_SECONDS
    return lambda: clock.monotonic() >= until
