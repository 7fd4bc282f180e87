"""Initialize a new database: default domain, project, pool and quotas, two users with tokens.

    manage.py bootstrap [--credentials FILE]

Password and tokens may come from the environment (CELLRUN_ADMIN_USER, CELLRUN_ADMIN_PASSWORD,
CELLRUN_OPERATOR_TOKEN, CELLRUN_TOKEN) or from files (CELLRUN_ADMIN_PASSWORD_FILE, …); others are
generated and printed once, or with --credentials written to a file that only its owner can read.
Idempotent.
"""

import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management.base import CommandError, CommandParser
from django.db import transaction

from controlplane import clock
from controlplane.commands.tenancy import accounts
from controlplane.commands.tenancy.members import MemberScope, put_member
from controlplane.commands.tenancy.pools import put_pool
from controlplane.commands.tenancy.quotas import create_shipped_defaults
from controlplane.commands.tenancy.tokens import create_api_token
from controlplane.contract.secret_files import resolve_secret_files
from controlplane.domain.roles import Role
from controlplane.domain.scopes import DEFAULT_NAME
from controlplane.management.actor import AuditedCommand, actor_of_process
from controlplane.models import Project

# A user or project with many waiting tasks must not delay all others.
_SEQUENCER = "fair_projects"

SECRETS = ("CELLRUN_ADMIN_PASSWORD", "CELLRUN_OPERATOR_TOKEN", "CELLRUN_TOKEN")


def _write_private(path: Path, lines: Iterable[str]) -> None:
    """Replace the file by one that only its owner can read. Raise CommandError."""
    draft = path.with_name(f"{path.name}.draft")
    try:
        draft.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(draft, flags, 0o600), "w") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise CommandError(f"--credentials: {error}") from None


class Command(AuditedCommand):
    """`manage.py bootstrap`."""

    help = "Create the default domain, project and pool, an operator and a submitter."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--quiet", action="store_true", help="print only errors")
        parser.add_argument(
            "--credentials",
            metavar="FILE",
            type=Path,
            help="write generated values to this file (mode 0600), and print none of them",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Create missing objects and print generated values."""
        given, faults = resolve_secret_files(
            os.environ, SECRETS, lambda path: Path(path).read_text()
        )
        if faults:
            raise CommandError("\n".join(faults))
        admin = given.get("CELLRUN_ADMIN_USER") or "admin"
        password = given.get("CELLRUN_ADMIN_PASSWORD")
        tokens = {name: given.get(name) or None for name in SECRETS}
        with transaction.atomic():  # all objects or none
            if accounts.create_default_tenancy():
                put_pool(name=DEFAULT_NAME, changes={"sequencer": _SEQUENCER})
                create_shipped_defaults()
            generated = self._account("operator", admin, password, "CELLRUN_OPERATOR_TOKEN", tokens)
            generated += self._account("submitter", "submitter", None, "CELLRUN_TOKEN", tokens)
            if generated and options["credentials"]:
                # Before the commit: values that cannot be written would be lost.
                _write_private(options["credentials"], generated)
                generated = [f"the generated values are in {options['credentials']}"]
        if not options["quiet"]:
            for line in generated or ["no password or token was generated"]:
                self.stdout.write(line)

    def _account(
        self,
        role: str,
        name: str,
        password: str | None,
        token_name: str,
        tokens: Mapping[str, str | None],
    ) -> list[str]:
        """Create one account with its token; return lines with generated values."""
        is_operator = role == "operator"
        try:
            user, is_new = accounts.create_user(
                name=name, password=password, is_operator=is_operator
            )
        except ValidationError as error:
            raise CommandError(f"CELLRUN_ADMIN_PASSWORD: {' '.join(error.messages)}") from None
        generated = []
        if is_new and not is_operator:
            self._admit(user)
        if is_operator and is_new and password is None:
            password = secrets.token_urlsafe(12)
            accounts.create_user(name=name, password=password, is_operator=True)
            generated.append(f"{role}'s login {name} / {password}")
        given = tokens[token_name]
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

    def _admit(self, user: User) -> None:
        """Make a new submitter a member of the default project."""
        project = Project.objects.get(domain__name=DEFAULT_NAME, name=DEFAULT_NAME)
        put_member(
            scope=MemberScope(project=project),
            member=user,
            role=Role.SUBMITTER,
            actor=actor_of_process(),
            now=clock.now(),
        )
