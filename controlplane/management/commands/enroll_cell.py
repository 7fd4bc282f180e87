"""`manage.py enroll_cell NAME`: enroll a cell and print its key."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane import clock
from controlplane.commands.cells.operate import enroll_cell
from controlplane.domain.errors import NotFound


class Command(BaseCommand):
    """Enrolls a cell; another call prints the same key."""

    help = "Enroll a cell and print its key."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="name of the cell")
        parser.add_argument("--pool", default="default", help="name of its pool")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            key = enroll_cell(name=options["name"], pool=options["pool"], now=clock.now())
        except NotFound as error:
            raise CommandError(str(error)) from error
        self.stdout.write(key)
