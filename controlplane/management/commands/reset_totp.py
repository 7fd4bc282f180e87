"""`manage.py reset_totp NAME`: delete the second factor of a user, for instance after a loss."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from controlplane import clock
from controlplane.commands.tenancy.totp import reset_totp
from controlplane.domain.errors import NotFound
from controlplane.management.actor import AuditedCommand, actor_of_process
from controlplane.queries.tenancy.accounts import get_user


class Command(AuditedCommand):
    """Deletes a second factor; the next login needs the password only, or enrolls a new one."""

    help = (
        "Delete the second factor and the recovery codes of a user. Its password remains, and so do"
        " its sessions."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="name of the user")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            user = get_user(options["name"])
            reset_totp(user=user, actor=actor_of_process(), now=clock.now())
        except NotFound as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"the second factor of {options['name']} is deleted")
