"""Rule 14: run bulk operations in pages, in turns."""

import time
from collections.abc import Mapping

from controlplane.commands.bulk import run_bulk_page
from controlplane.commands.convergence.late_tasks import SLICE_SECONDS
from controlplane.commands.convergence.runner import RuleContext
from controlplane.queries.jobs.bulk import list_running


def run_bulk_operations(context: RuleContext) -> Mapping[str, int]:
    """Run a page of each operation until all are complete or the time is over."""
    processed, until = 0, time.monotonic() + SLICE_SECONDS
    while running := list_running():
        for operation_id in running:
            if time.monotonic() >= until:
                return {"bulk_processed": processed}
            processed += run_bulk_page(
                operation_id, now=context.now, is_over=lambda: time.monotonic() >= until
            )
    return {"bulk_processed": processed}
