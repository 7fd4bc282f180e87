"""Record logins and failed logins in the audit log."""

from datetime import datetime

from django.contrib.sessions.models import Session
from django.db import transaction

from controlplane.commands.audit import Action, AuditEntry, Via, record

SESSIONS = 100
"""Expired sessions that one login deletes."""


def record_login(
    *, name: str, address: str, succeeded: bool, now: datetime, detail: str = ""
) -> None:
    """Write an audit line about a login as `name` from `address`.

    `detail`: the kind of login if it was not by password, the cause of a failure.
    """
    action = Action.LOG_IN_USER if succeeded else Action.REFUSE_LOGIN
    text = ", ".join(part for part in (f"from {address}", detail) if part)
    with transaction.atomic():
        record(AuditEntry(action, f"user {name}", text), actor=name, via=Via.SESSION, now=now)


def delete_expired_sessions(*, now: datetime) -> None:
    """Delete a page of expired sessions. Each new session calls it, so that they do not pile up."""
    page = Session.objects.filter(expire_date__lt=now).values("pk")[:SESSIONS]
    Session.objects.filter(pk__in=page).delete()
