"""`manage.py enroll_cell NAME`: enroll a cell, or change its key; print the key or join token."""

from argparse import ArgumentParser
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from controlplane import clock
from controlplane.commands.cells.operate import enroll_cell
from controlplane.commands.cells.rotation import rotate_key
from controlplane.contract.wire.join_token import JoinToken
from controlplane.contract.wire.keys import decode_key
from controlplane.domain.errors import Conflict, NotFound
from controlplane.management.actor import AuditedCommand, actor_of_process
from controlplane.management.enrolment import add_enrolment_options, read_enrolment_options
from controlplane.outbox.redis_users import RedisUsersFailed
from controlplane.spec import InvalidSpec

ROTATION_HOURS = 24
MAX_ROTATION_HOURS = 30 * 24


class Command(AuditedCommand):
    """Enrolls a cell; another call prints the same key, `--renew` and `--rotate` a new one."""

    help = "Enroll a cell and print its key."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="name of the cell")
        add_enrolment_options(parser)
        change = parser.add_mutually_exclusive_group()
        change.add_argument(
            "--renew",
            action="store_true",
            help="draw a new key, also for a revoked cell; the old one is invalid at once",
        )
        change.add_argument(
            "--rotate",
            action="store_true",
            help="draw the next key of an enrolled cell; the present one is valid until the cell"
            " uses the next one",
        )
        parser.add_argument(
            "--within-hours",
            type=int,
            metavar="N",
            help="with --rotate: hours after which a next key without use is discarded;"
            f" default: {ROTATION_HOURS}, at most {MAX_ROTATION_HOURS}",
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
        if options["within_hours"] is not None and not options["rotate"]:
            raise CommandError("--within-hours needs --rotate")
        try:
            if options["rotate"]:
                key = self._rotate(options, enrolment)
            else:
                key = enroll_cell(
                    name=options["name"],
                    **enrolment,
                    renew=options["renew"],
                    actor=actor_of_process(),
                    now=clock.now(),
                )
        except (Conflict, InvalidSpec, NotFound, RedisUsersFailed) as error:
            raise CommandError(str(error)) from error
        if options["join_token"]:
            broker_url = options["broker_url"] or settings.CELLRUN.broker_url
            key = JoinToken(options["name"], decode_key(key), broker_url).encode()
        self.stdout.write(key)

    def _rotate(self, options: Mapping[str, Any], enrolment: Mapping[str, Any]) -> str:
        """Return the next key; print its deadline beside it, so that a file gets the key alone."""
        name, hours = options["name"], options["within_hours"]
        hours = ROTATION_HOURS if hours is None else hours
        if any(value is not None for value in enrolment.values()):
            raise CommandError("--rotate changes only the key: omit the options of the enrolment")
        if not 1 <= hours <= MAX_ROTATION_HOURS:
            raise CommandError(f"--within-hours: 1 to {MAX_ROTATION_HOURS} hours are possible")
        now = clock.now()
        key, until = rotate_key(
            name=name, until=now + timedelta(hours=hours), actor=actor_of_process(), now=now
        )
        self.stderr.write(
            f"The present key of {name} is valid until the cell uses this one. If it does not"
            f" before {until:%Y-%m-%d %H:%M:%S} UTC, this one is discarded."
        )
        return key
