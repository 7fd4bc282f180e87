"""Management commands whose changes appear in the audit log under the name of their user."""

import getpass
from typing import Any

from django.core.management.base import BaseCommand

from controlplane.commands.audit import Origin, Via, bind_origin


def actor_of_process() -> str:
    """Return `manage.py` with the user of the operating system, if that user has a name."""
    try:
        return f"manage.py ({getpass.getuser()})"
    except (KeyError, OSError):  # a user id without an entry, as in containers
        return "manage.py"


class AuditedCommand(BaseCommand):
    """Base of the commands that change something."""

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command as the origin of the audit lines."""
        with bind_origin(lambda: Origin(actor_of_process(), Via.COMMAND)):
            return super().execute(*args, **options)
