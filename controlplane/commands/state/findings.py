"""Store dead letters, and close alerts manually."""

from datetime import datetime

from django.db import transaction

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.contract.codec import clean_text
from controlplane.domain.errors import NotFound
from controlplane.models import Alert, DeadLetter


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
        text = "; ".join(filter(None, (reason.strip(), found.text)))
        entry = AuditEntry(Action.CLOSE_ALERT, f"alert {found}", text)
        record(entry, actor=actor, now=now)


def add_dead_letter(*, source: str, error: str, body: str, now: datetime) -> None:
    """Store a message for operators, with bounded texts."""
    DeadLetter.objects.create(
        at=now, source=source, error=clean_text(error, 4_000), body=clean_text(body)
    )
