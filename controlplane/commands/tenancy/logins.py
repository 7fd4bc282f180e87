"""Record logins, failed logins and refused tokens in the audit log."""

from datetime import datetime

from django.contrib.sessions.models import Session
from django.db import transaction

from controlplane.commands.audit import Action, AuditEntry, Via, record

UNKNOWN = "unknown (token)"
"""The actor of a request with a refused token."""

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


def record_refused_token(*, reason: str, now: datetime) -> None:
    """Write an audit line about a request whose API token is refused."""
    with transaction.atomic():
        entry = AuditEntry(Action.REFUSE_TOKEN, "an API token", reason)
        record(entry, actor=UNKNOWN, via=Via.TOKEN, now=now)


def delete_expired_sessions(*, now: datetime) -> None:
    """Delete a page of expired sessions. Each new session calls it, so that they do not pile up."""
    page = Session.objects.filter(expire_date__lt=now).values("pk")[:SESSIONS]
    Session.objects.filter(pk__in=page).delete()
