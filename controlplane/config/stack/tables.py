"""Migrate tables, accounts and cells in one process, and print the cells' keys as JSON.

    python -m controlplane.config.stack.tables cell-1 cell-2

Equivalent to `manage.py migrate`, `bootstrap` and an `enroll_cell` for each name, which would each
load Django again.
"""

import io
import json
import os
import sys

import django
from django.core.management import CommandError, call_command


def find_revoked(names: list[str]) -> set[str]:
    """Return the names among `names` of cells with a revoked key."""
    from controlplane.models import Cell  # Django is set up by now

    found = Cell.objects.filter(name__in=names, revoked_at__isnull=False)
    return set(found.values_list("name", flat=True))


def main(cells: list[str]) -> int:
    """Run the commands; return 1 and print the error if one fails."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.config.settings")
    django.setup()
    keys = {}
    try:
        call_command("migrate", verbosity=0, interactive=False)
        call_command("bootstrap", quiet=True)
        for name in cells:
            printed = io.StringIO()
            # A revoked key must not stop the start: its own cells get new keys from the stack.
            call_command("enroll_cell", name, renew=name in find_revoked(cells), stdout=printed)
            keys[name] = printed.getvalue().strip()
    except CommandError as fault:
        print(fault, file=sys.stderr)
        return 1
    print(json.dumps(keys))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
