"""Record logins and failed logins in the audit log."""

from datetime import datetime

from django.contrib.sessions.models import Session

from controlplane.contract.codec import clean_text
from controlplane.models import AuditLine

LOGGED_IN = "logged in"
LOGIN_FAILED = "login failed"

SESSIONS = 100
"""Expired sessions that one login deletes."""


def record_login(
    *, name: str, address: str, succeeded: bool, now: datetime, detail: str = ""
) -> None:
    """Write an audit line about a login as `name` from `address`.

    `detail`: the kind of login if it was not by password, the cause of a failure.
    """
    AuditLine.objects.create(
        at=now,
        actor=clean_text(name, 150),
        action=LOGGED_IN if succeeded else LOGIN_FAILED,
        subject="admin",
        text=clean_text(f"from {address}, {detail}" if detail else f"from {address}"),
    )


def delete_expired_sessions(*, now: datetime) -> None:
    """Delete a page of expired sessions. Each new session calls it, so that they do not pile up."""
    page = Session.objects.filter(expire_date__lt=now).values("pk")[:SESSIONS]
    Session.objects.filter(pk__in=page).delete()
