"""Brings tables, accounts and cells up to date in one process, and prints the cells' keys as JSON.

    python -m controlplane.config.stack.tables cell-1 cell-2

The same as `manage.py migrate`, `bootstrap` and an `enroll_cell` for each name, of which each would
load Django anew.
"""

import io
import json
import os
import sys

import django
from django.core.management import CommandError, call_command


def main(cells: list[str]) -> int:
    """Do it; 1 with the reason if a command refuses."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.config.settings")
    django.setup()
    keys = {}
    try:
        call_command("migrate", verbosity=0, interactive=False)
        call_command("bootstrap", quiet=True)
        for name in cells:
            printed = io.StringIO()
            call_command("enroll_cell", name, stdout=printed)
            keys[name] = printed.getvalue().strip()
    except CommandError as fault:
        print(fault, file=sys.stderr)
        return 1
    print(json.dumps(keys))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
