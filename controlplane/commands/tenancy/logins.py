"""Record logins and failed logins with passwords in the audit log."""

from datetime import datetime

from controlplane.contract.codec import clean_text
from controlplane.models import AuditLine

LOGGED_IN = "logged in"
LOGIN_FAILED = "login failed"


def record_login(*, name: str, address: str, succeeded: bool, now: datetime) -> None:
    """Write an audit line about a login as `name` from `address`."""
    AuditLine.objects.create(
        at=now,
        actor=clean_text(name, 150),
        action=LOGGED_IN if succeeded else LOGIN_FAILED,
        subject="admin",
        text=f"from {address}",
    )
