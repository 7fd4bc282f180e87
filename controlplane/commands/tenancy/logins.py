"""Record logins and failed logins with passwords in the audit log."""

from datetime import datetime

from django.db import transaction

from controlplane.commands.audit import Action, AuditEntry, Via, record


def record_login(*, name: str, address: str, succeeded: bool, now: datetime) -> None:
    """Write an audit line about a login as `name` from `address`."""
    action = Action.LOG_IN_USER if succeeded else Action.REFUSE_LOGIN
    entry = AuditEntry(action, f"user {name}", f"in the admin, from {address}")
    with transaction.atomic():
        record(entry, actor=name, via=Via.SESSION, now=now)
