"""`manage.py revoke_cell NAME`: revoke the key of a cell, so that it is excluded at once."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from controlplane import clock
from controlplane.commands.cells.operate import revoke_cell
from controlplane.domain.errors import NotFound
from controlplane.management.actor import AuditedCommand, actor_of_process
from controlplane.outbox.redis_users import RedisUsersFailed


class Command(AuditedCommand):
    """Revokes the key of a cell; its tasks run elsewhere."""

    help = (
        "Revoke the key of a cell: its messages and requests are ignored, and its tasks run"
        " elsewhere. Containers on its host are not stopped."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="name of the cell")
        parser.add_argument("--reason", default="", help="a text for the audit log")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            revoke_cell(
                name=options["name"],
                actor=actor_of_process(),
                reason=options["reason"],
                now=clock.now(),
            )
        except (NotFound, RedisUsersFailed) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"the key of cell {options['name']} is revoked")
