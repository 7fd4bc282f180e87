"""`manage.py enroll_cells FOLDER NAME…`: enroll cells and write each key to a file of its name."""

import os
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from controlplane import clock
from controlplane.commands.cells.operate import enroll_cell
from controlplane.domain.errors import Conflict, NotFound
from controlplane.management.actor import AuditedCommand, actor_of_process
from controlplane.management.enrolment import add_enrolment_options, read_enrolment_options
from controlplane.outbox.redis_users import RedisUsersFailed
from controlplane.spec import InvalidSpec


class Command(AuditedCommand):
    """Enrolls cells; another call writes the same keys."""

    help = "Enroll cells and write their keys into a folder, one file each."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("folder", type=Path, help="folder of the key files")
        parser.add_argument("name", nargs="+", help="name of a cell, and of its key file")
        add_enrolment_options(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Enroll each cell and write its key, readable only by the file's owner."""
        folder: Path = options["folder"]
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        enrolment = read_enrolment_options(options)
        for name in options["name"]:
            try:
                key = enroll_cell(name=name, **enrolment, actor=actor_of_process(), now=clock.now())
            except (Conflict, InvalidSpec, NotFound, RedisUsersFailed) as error:
                raise CommandError(str(error)) from error
            with os.fdopen(
                os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w"
            ) as file:
                os.fchmod(file.fileno(), 0o600)  # an existing file has a mode of its own
                file.write(key + "\n")
