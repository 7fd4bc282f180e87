"""`manage.py enroll_cell NAME`: enroll a cell and print its key or join token, or renew the key."""

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from controlplane import clock
from controlplane.commands.cells.operate import enroll_cell
from controlplane.contract.wire.join_token import JoinToken
from controlplane.contract.wire.keys import decode_key
from controlplane.domain.errors import Conflict, NotFound
from controlplane.management.actor import AuditedCommand, actor_of_process
from controlplane.management.enrolment import add_enrolment_options, read_enrolment_options
from controlplane.outbox.redis_users import RedisUsersFailed


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

        parser.add_argument(
            "--join-token",
            action="store_true",
            help="print a token for `cellrun-cell join` instead of the key; it contains the"
            " secrets of a cell: its key and the address of the broker",
        )
        parser.add_argument(
            "--broker-url",
            help="address of the broker in the token; default: that of the control plane",
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
        except (Conflict, NotFound, RedisUsersFailed) as error:
            raise CommandError(str(error)) from error
        if options["join_token"]:
            broker_url = options["broker_url"] or settings.CELLRUN.broker_url
            key = JoinToken(options["name"], decode_key(key), broker_url).encode()
        self.stdout.write(key)
