"""Store dead letters and audit lines, and close alerts manually."""

from datetime import datetime

from django.db import transaction

from controlplane.contract.codec import clean_text
from controlplane.domain.errors import NotFound
from controlplane.models import Alert, AuditLine, DeadLetter


def close_alert(*, alert_id: int, actor: str, reason: str, now: datetime) -> None:
    """Close an open alert and write an audit line. Raise NotFound.

    The alert is raised again if its cause persists.
    """
    with transaction.atomic():
        found = Alert.objects.select_for_update().filter(pk=alert_id).first()
        if found is None:
            raise NotFound(f"there is no alert {alert_id}")
        if found.cleared_at is not None:
            return
        found.cleared_at = now
        found.save(update_fields=["cleared_at"])
        AuditLine.objects.create(
            at=now,
            actor=actor[:150],
            action="closed",
            subject=f"alert {found}"[:400],
            text="; ".join(filter(None, (reason.strip(), found.text))),
        )


def add_audit_line(action: str, subject: str, text: str, *, actor: str, now: datetime) -> None:
    """Write an audit line about an action of `actor`."""
    AuditLine.objects.create(
        at=now, actor=actor[:150], action=action, subject=subject[:400], text=text
    )


def add_dead_letter(*, source: str, error: str, body: str, now: datetime) -> None:
    """Store a message for operators, with bounded texts."""
    DeadLetter.objects.create(
        at=now, source=source, error=clean_text(error, 4_000), body=clean_text(body)
    )
