"""`manage.py reseal_secrets`: after a new CELLRUN_SECRET_KEY, nothing needs the old one any more.

Exits with 1, naming it, if a secret was sealed with a key that is not known. Repeatable.
"""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.commands.tenancy.secrets import reseal_page
from controlplane.queries.tenancy.secrets import SealedOtherwise


class Command(BaseCommand):
    """Seal all secrets with the key in force."""

    help = "Seal all secrets with CELLRUN_SECRET_KEY that are sealed with one of its fallbacks."

    def handle(self, *args: Any, **options: Any) -> None:
        """Seal page by page."""
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
