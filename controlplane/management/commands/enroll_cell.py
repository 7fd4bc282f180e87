"""`manage.py enroll_cell NAME`: make a cell known and print its key."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane import clock
from controlplane.commands.cells.operate import enroll_cell
from controlplane.domain.errors import NotFound


class Command(BaseCommand):
    """Enroll a cell; calling it again prints the same key."""

    help = "Enroll a cell and print its key."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """NAME and --pool."""
        parser.add_argument("name")
        parser.add_argument("--pool", default="default")

    def handle(self, *args: Any, **options: Any) -> None:
        """Enroll and print."""
        try:
            key = enroll_cell(name=options["name"], pool=options["pool"], now=clock.now())
        except NotFound as error:
            raise CommandError(str(error)) from error
        self.stdout.write(key)
