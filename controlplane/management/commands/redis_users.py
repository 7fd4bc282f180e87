"""`manage.py redis_users`: write the ACL users of all cells into Redis, or print them."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from controlplane.commands.cells.redis_users import list_commands, put_all_users
from controlplane.management.actor import AuditedCommand
from controlplane.outbox.redis_users import RedisUsersFailed


class Command(AuditedCommand):
    """Writes the users of enrolled cells, and deletes those of revoked ones. Idempotent."""

    help = (
        "Write the ACL users of all enrolled cells into Redis, and delete those of revoked cells;"
        " for a Redis that has lost its users."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--print",
            action="store_true",
            dest="is_printed",
            help="print the commands for redis-cli, which contain no password, and change nothing",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["is_printed"]:
            for line in list_commands():
                self.stdout.write(line)
            return
        try:
            count = put_all_users()
        except RedisUsersFailed as error:
            raise CommandError(f"{error} (with --print, change them with redis-cli)") from error
        self.stdout.write(f"Redis has the users of {count} cells")
