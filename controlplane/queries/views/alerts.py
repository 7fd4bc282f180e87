"""Open alerts."""

from datetime import datetime

from controlplane.queries.sql import scalar


def find_alert_text(kind: str, *, since: datetime) -> str | None:
    """The text of an open alert of that kind that was raised, or raised again, since then."""
    statement = """
        SELECT text FROM controlplane_alert
        WHERE kind = %s AND cleared_at IS NULL AND last_raised_at > %s LIMIT 1
        """
    text = scalar(statement, [kind, since])
    return None if text is None else str(text)
