"""`manage.py reseal_secrets`: seal values with the present key, to retire a former one.

The values are secrets of projects, keys of second factors and addresses of notifications.

Exit with 1, naming the secret, if one was sealed with an unknown key. Idempotent.
"""

from typing import Any

from django.core.management.base import CommandError

from controlplane.commands.notifications.configure import reseal_addresses
from controlplane.commands.tenancy.secrets import reseal_page
from controlplane.commands.tenancy.totp import reseal_totp_keys
from controlplane.domain.errors import Conflict
from controlplane.management.actor import AuditedCommand
from controlplane.queries.cells.keys import find_cells_of_former_keys
from controlplane.queries.tenancy.secrets import SealedOtherwise


class Command(AuditedCommand):
    """Seals all secrets with the current key."""

    help = (
        "Seal secrets again with the present key if they are sealed with a former one, and list the"
        " cells whose keys need a former CELLRUN_SECRET_KEY."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        resealed, after = 0, 0
        while True:
            try:
                following, done = reseal_page(after=after)
            except SealedOtherwise as error:
                raise CommandError(str(error)) from None
            resealed += done
            if following is None:
                break
            after = following
        self.stdout.write(f"{resealed} secrets resealed")
        try:
            keys = reseal_totp_keys()
        except Conflict as error:
            raise CommandError(str(error)) from None
        if keys:
            self.stdout.write(f"{keys} second factors resealed")
        try:
            addresses = reseal_addresses()
        except Conflict as error:
            raise CommandError(str(error)) from None
        if addresses:
            self.stdout.write(f"{addresses} notification addresses resealed")
        if cells := find_cells_of_former_keys():
            self.stdout.write(
                f"the keys of {len(cells)} cells need CELLRUN_SECRET_KEY_FALLBACKS:"
                f" {', '.join(cells)}"
            )
