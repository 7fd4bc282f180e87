"""Makes a fresh database usable: default domain, project and pool, an operator and a submitter.

    manage.py bootstrap

Password and tokens may come from the environment (CELLRUN_ADMIN_USER, CELLRUN_ADMIN_PASSWORD,
CELLRUN_OPERATOR_TOKEN, CELLRUN_TOKEN); what is not given is drawn and printed once. Repeatable.
"""

import os
import secrets
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane import clock
from controlplane.commands import accounts


class Command(BaseCommand):
    """`manage.py bootstrap`."""

    help = "Create the default domain, project and pool, an operator and a submitter."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add this command's options."""
        parser.add_argument("--quiet", action="store_true", help="print nothing but errors")

    def handle(self, *args: Any, **options: Any) -> None:
        """Create what is missing; tell what was drawn."""
        admin = os.environ.get("CELLRUN_ADMIN_USER") or "admin"
        password = os.environ.get("CELLRUN_ADMIN_PASSWORD") or secrets.token_urlsafe(12)
        now = clock.now()
        accounts.create_default_tenancy()
        operator = accounts.create_user(name=admin, password=password, is_operator=True)
        submitter = accounts.create_user(name="submitter", password=None, is_operator=False)
        try:
            operator_token = accounts.create_api_token(
                user=operator,
                name="bootstrap",
                scopes=accounts.SCOPES,
                now=now,
                token=os.environ.get("CELLRUN_OPERATOR_TOKEN") or None,
            )
            submitter_token = accounts.create_api_token(
                user=submitter,
                name="bootstrap",
                scopes=(accounts.SCOPE_SUBMIT,),
                now=now,
                token=os.environ.get("CELLRUN_TOKEN") or None,
            )
        except ValueError as fault:
            raise CommandError(str(fault)) from None
        if not options["quiet"]:
            self.stdout.write(f"operator {admin} / {password}")
            self.stdout.write(f"operator's token {operator_token}")
            self.stdout.write(f"submitter's token {submitter_token}")
