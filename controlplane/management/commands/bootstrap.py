"""Initialize a new database: default domain, project and pool, an operator and a submitter.

    manage.py bootstrap

Password and tokens may come from the environment (CELLRUN_ADMIN_USER, CELLRUN_ADMIN_PASSWORD,
CELLRUN_OPERATOR_TOKEN, CELLRUN_TOKEN); others are generated and printed once. Idempotent.
"""

import os
import secrets
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError, CommandParser
from django.db import transaction

from controlplane import clock
from controlplane.commands.tenancy import accounts
from controlplane.commands.tenancy.tokens import create_api_token
from controlplane.domain.roles import Role
from controlplane.management.actor import AuditedCommand


class Command(AuditedCommand):
    """`manage.py bootstrap`."""

    help = "Create the default domain, project and pool, an operator and a submitter."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--quiet", action="store_true", help="print only errors")

    def handle(self, *args: Any, **options: Any) -> None:
        """Create missing objects and print generated values."""
        admin = os.environ.get("CELLRUN_ADMIN_USER") or "admin"
        password = os.environ.get("CELLRUN_ADMIN_PASSWORD")
        with transaction.atomic():  # all objects or none
            accounts.create_default_tenancy()
            generated = self._account("operator", admin, password, "CELLRUN_OPERATOR_TOKEN")
            generated += self._account("submitter", "submitter", None, "CELLRUN_TOKEN")
        if not options["quiet"]:
            for line in generated or ["no password or token was generated"]:
                self.stdout.write(line)

    def _account(self, role: str, name: str, password: str | None, token_name: str) -> list[str]:
        """Create one account with its token; return lines with generated values."""
        is_operator = role == "operator"
        try:
            user, is_new = accounts.create_user(
                name=name, password=password, is_operator=is_operator
            )
        except ValidationError as error:
            raise CommandError(f"CELLRUN_ADMIN_PASSWORD: {' '.join(error.messages)}") from None
        generated = []
        if is_operator and is_new and password is None:
            password = secrets.token_urlsafe(12)
            accounts.create_user(name=name, password=password, is_operator=True)
            generated.append(f"{role}'s login {name} / {password}")
        given = os.environ.get(token_name) or None
        if given or is_new:
            try:
                token = create_api_token(
                    user=user,
                    name="bootstrap",
                    role=Role.OPERATOR if is_operator else Role.SUBMITTER,
                    now=clock.now(),
                    token=given,
                )
            except ValueError as fault:
                raise CommandError(f"{token_name}: {fault}") from None
            if given is None:
                generated.append(f"{role}'s token {token}")
        return generated
