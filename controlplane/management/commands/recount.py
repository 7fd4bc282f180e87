"""`manage.py recount`: derive counts and job states again from the tasks (docs/operations.md).

Exit with 0 if all were right or have been repaired, with 1 if something is still wrong.
"""

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from controlplane import clock
from controlplane.commands.state.recount import recount_jobs
from controlplane.queries.integrity.invariants import find_page


class Command(BaseCommand):
    """Lists every difference with its ids; repairs them on request."""

    help = "Derive status counts and job states again from the tasks; exit with 1 if any differed."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--repair", action="store_true", help="mend the counts, and let the jobs follow"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        repair = options["repair"]
        jobs = found = repaired = 0
        after: int | None = 0
        while after is not None:
            page = find_page(after)
            jobs, after = jobs + len(page.job_ids), page.reached
            for violation in recount_jobs(page.job_ids, repair=repair, now=clock.now()):
                found += 1
                is_repaired = repair and violation.repair is not None
                repaired += is_repaired
                outcome = " (mended)" if is_repaired else " (left)" if repair else ""
                self.stdout.write(f"{violation}{outcome}")
        if found > repaired:
            self.stderr.write(f"{found} differences in {jobs} jobs, {repaired} mended")
            sys.exit(1)
        self.stdout.write(f"{jobs} jobs recounted, {repaired} differences mended")
