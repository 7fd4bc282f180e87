"""`manage.py doctor`: list stuck work, its owner, and when the owner acts (docs/operations.md).

Exit with 0 if nothing needs an operator, with 1 otherwise. Change and lock nothing.
"""

import json
import sys
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.core.serializers.json import DjangoJSONEncoder

from controlplane import clock
from controlplane.domain.integrity.doctor import DoctorEntry, judge_tasks
from controlplane.queries.convergence.doctor import find_unwell, load_open_tasks
from controlplane.queries.policy import load_policy
from controlplane.queries.ticks import load_tick


class Command(BaseCommand):
    """Prints work that waits longer than usual; findings that need an operator come first."""

    help = (
        "List stuck work, its owner and when the owner acts; exit with 1 if an operator must act."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON array")

    def handle(self, *args: Any, **options: Any) -> None:
        now, policy = clock.now(), load_policy()
        found = [
            *find_unwell(now, policy),
            *judge_tasks(
                load_open_tasks(policy),
                now=now,
                interval=policy.interval,
                hold_until=load_tick("convergence").hold_until,
            ),
        ]
        found.sort(key=lambda finding: not finding.needs_person)
        needed = sum(finding.needs_person for finding in found)
        if options["json"]:
            listed = [asdict(finding) for finding in found]
            self.stdout.write(json.dumps(listed, cls=DjangoJSONEncoder, indent=1))
        else:
            for finding in found:
                self.stdout.write(_line(finding))
            self.stdout.write(f"{len(found)} findings, {needed} of them need an operator")
        if needed:
            sys.exit(1)


def _line(finding: DoctorEntry) -> str:
    mark = "!" if finding.needs_person else " "
    count = f" ({finding.count})" if finding.count > 1 else ""
    since = f", since {finding.since:%Y-%m-%d %H:%M:%S}" if finding.since else ""
    return (
        f"{mark} {finding.subject}{count}: {finding.what}{since}\n"
        f"    {finding.owner}: {finding.acts}"
    )
