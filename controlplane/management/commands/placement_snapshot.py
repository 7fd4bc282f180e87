"""`manage.py placement_snapshot`: print the input of a pass over a pool as JSON."""

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from controlplane import clock
from controlplane.domain.placement.replay import write_record
from controlplane.queries.placement.record import NoSuchPool, load_record


class Command(BaseCommand):
    """Prints the record without writing to the database."""

    help = "Print the input of a placement pass over a pool, for placement_replay."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--pool", default="default", help="name of the pool")

    def handle(self, *args: Any, **options: Any) -> None:
        """Read the record from one snapshot of the database and print it."""
        now = clock.now()
        try:
            with transaction.atomic():
                record = load_record(options["pool"], now=now)
        except NoSuchPool as error:
            raise CommandError(str(error)) from None
        self.stdout.write(json.dumps(write_record(record), ensure_ascii=False, indent=1))
