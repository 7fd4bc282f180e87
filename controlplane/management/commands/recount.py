"""`manage.py recount`: derive counts, job states and totals of stored bytes again.

Exit with 0 if all are right or repaired, with 1 if a difference remains.
"""

import sys
from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandParser

from controlplane import clock
from controlplane.commands.state.recount import recount_jobs
from controlplane.commands.tenancy import stored_totals
from controlplane.domain.integrity import InvariantViolation
from controlplane.management.actor import AuditedCommand
from controlplane.queries.integrity.invariants import find_page


class Command(AuditedCommand):
    """Prints every difference with its ids; repairs them with `--repair`."""

    help = (
        "Derive counts and job states again from the tasks, and totals of stored bytes from the"
        " sizes of files; exit with 1 if a difference remains."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--repair",
            action="store_true",
            help="repair the counts, the states of jobs and the totals of stored bytes",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        repair = options["repair"]
        jobs = found = repaired = 0
        after: int | None = 0
        while after is not None:
            page = find_page(after)
            jobs, after = jobs + len(page.job_ids), page.reached
            for violation in recount_jobs(
                page.job_ids, repair=repair, by_command=True, now=clock.now()
            ):
                found += 1
                is_repaired = repair and violation.repair is not None
                repaired += is_repaired
                outcome = " (repaired)" if is_repaired else " (not repaired)" if repair else ""
                self.stdout.write(f"{violation}{outcome}")
        for violation in _recount_totals(repair=repair):
            found += 1
            repaired += repair
            self.stdout.write(f"{violation}{' (repaired)' if repair else ''}")
        if found > repaired:
            remedy = "" if repair else ": run it with --repair"
            self.stderr.write(
                f"{found} differences, {repaired} repaired ({jobs} jobs checked){remedy}"
            )
            sys.exit(1)
        self.stdout.write(f"{jobs} jobs recounted, {repaired} differences repaired")


def _recount_totals(*, repair: bool) -> Iterator[InvariantViolation]:
    while True:
        found = stored_totals.recount_totals(repair=repair, by_command=True, now=clock.now())
        yield from found
        if not repair or len(found) < stored_totals.PAGE:
            break
