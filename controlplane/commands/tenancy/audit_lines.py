"""Write the audit lines about projects, members, tokens and service accounts."""

from datetime import datetime

from controlplane.models import AuditLine


def add_line(action: str, subject: str, text: str = "", *, actor: str, now: datetime) -> None:
    """Write an audit line, in the transaction of the change that it describes."""
    AuditLine.objects.create(
        at=now, actor=actor[:150], action=action, subject=subject[:400], text=text
    )
