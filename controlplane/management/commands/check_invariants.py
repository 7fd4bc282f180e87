"""`manage.py check_invariants`: list rows that contradict an invariant (docs/invariants.md).

Exit with 0 if there is none, with 1 after listing all of them. Change and lock nothing.
"""

import sys
from typing import Any

from django.core.management.base import BaseCommand

from controlplane.domain.integrity import INVARIANTS
from controlplane.queries.integrity.invariants import check_database


class Command(BaseCommand):
    """Prints every violation with its ids."""

    help = "Check the invariants on the live database; exit with 1 if one is violated."

    def handle(self, *args: Any, **options: Any) -> None:
        count = 0
        for violation in check_database():
            count += 1
            self.stdout.write(str(violation))
        if count:
            self.stderr.write(f"{count} violations; docs/invariants.md describes the repairs")
            sys.exit(1)
        self.stdout.write(f"{len(INVARIANTS)} invariants hold")
