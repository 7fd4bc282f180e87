"""`manage.py enroll_cell NAME`: enroll a cell and print its key, or renew the key."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from controlplane import clock
from controlplane.commands.cells.operate import enroll_cell
from controlplane.domain.errors import Conflict, NotFound
from controlplane.management.actor import AuditedCommand, actor_of_process
from controlplane.management.enrolment import add_enrolment_options, read_enrolment_options


class Command(AuditedCommand):
    """Enrolls a cell; another call prints the same key, with `--renew` a new one."""

    help = "Enroll a cell and print its key."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="name of the cell")
        add_enrolment_options(parser)
        parser.add_argument(
            "--renew",
            action="store_true",
            help="draw a new key, also for a revoked cell; the old one is invalid at once",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        enrolment = read_enrolment_options(options)
        try:
            key = enroll_cell(
                name=options["name"],
                **enrolment,
                renew=options["renew"],
                actor=actor_of_process(),
                now=clock.now(),
            )
        except (Conflict, NotFound) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(key)
