"""Findings for operators: dead letters, and alerts that are closed by hand."""

from datetime import datetime

from django.db import transaction

from controlplane.contract.codec import clean_text
from controlplane.domain.errors import NotFound
from controlplane.models import Alert, AuditLine, DeadLetter


def close_alert(*, alert_id: int, actor: str, reason: str, now: datetime) -> None:
    """Close the alert, if it is open; an audit line has the actor. Raise NotFound.

    An alert whose cause is still there is raised again.
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


def add_dead_letter(*, source: str, error: str, body: str, now: datetime) -> None:
    """Keep a message for people, its text bounded."""
    DeadLetter.objects.create(
        at=now, source=source, error=clean_text(error, 4_000), body=clean_text(body)
    )
