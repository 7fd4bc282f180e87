"""Closing alerts by hand; one whose cause is still there is raised again."""

from datetime import datetime

from django.db import transaction

from controlplane.domain.errors import NotFound
from controlplane.models import Alert, AuditLine


def close_alert(*, alert_id: int, actor: str, reason: str, now: datetime) -> None:
    """Close the alert, if it is open; an audit line has the actor. Raise NotFound."""
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
