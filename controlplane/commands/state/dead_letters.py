"""Putting aside what could not be applied, where operators see it."""

from datetime import datetime

from controlplane.contract.codec import clean_text
from controlplane.models import DeadLetter


def add_dead_letter(*, source: str, error: str, body: str, now: datetime) -> None:
    """Keep a message for people, its text bounded."""
    DeadLetter.objects.create(
        at=now, source=source, error=clean_text(error, 4_000), body=clean_text(body)
    )
