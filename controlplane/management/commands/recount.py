"""`manage.py recount`: derives counts and job states again from the tasks (docs/operations.md).

Exits with 0 if all were right or have been mended, with 1 if something is not as it must be.
"""

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from controlplane import clock
from controlplane.commands.state.recount import recount_page
from controlplane.domain.integrity.recount import Difference


class Command(BaseCommand):
    """List every difference with its ids; mend them if that is asked for."""

    help = "Derive status counts and job states again from the tasks; exit with 1 if any differed."

    def add_arguments(self, parser: CommandParser) -> None:
        """`--repair`."""
        parser.add_argument(
            "--repair", action="store_true", help="mend the counts, and let the jobs follow"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Recount, page by page."""
        repair = options["repair"]
        jobs = found = mended = last = 0
        while (page := recount_page(after=last, repair=repair, now=clock.now())).job_ids:
            jobs, last = jobs + len(page.job_ids), page.job_ids[-1]
            for difference in page.differences:
                found += 1
                is_mended = repair and difference.is_mendable
                mended += is_mended
                self.stdout.write(difference.text + _outcome(difference, repair))
        if found > mended:
            self.stderr.write(f"{found} differences in {jobs} jobs, {mended} mended")
            sys.exit(1)
        self.stdout.write(f"{jobs} jobs recounted, {mended} differences mended")


def _outcome(difference: Difference, repair: bool) -> str:
    if not repair:
        return ""
    if difference.is_mendable:
        return " (mended)"
    if difference.flag is None:  # counts are mended: it is a state, and that of an end
        return " (left: an end is final)"
    return " (left: the right value is unknown)"
