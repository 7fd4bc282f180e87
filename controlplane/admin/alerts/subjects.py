"""Link alerts to the pages of their subjects, for users that may view these pages."""

from collections.abc import Iterable
from typing import Any

from django.utils.safestring import SafeString

from controlplane.admin.badges import page_link
from controlplane.domain.alerts import find_subject
from controlplane.models import Alert
from controlplane.queries.pages.alerts import find_pages


def subject_links(alerts: Iterable[Alert], user: Any) -> dict[int, SafeString | str]:
    """Return the subject of each alert by the id of the alert, as a link if it has a page."""
    subjects = {alert: find_subject(alert.kind, alert.subject) for alert in alerts}
    pages = find_pages(subjects.values())
    links: dict[int, SafeString | str] = {}
    for alert, subject in subjects.items():
        links[alert.pk] = alert.subject
        if subject in pages:
            model, key, text = pages[subject]
            if user.has_perm(f"controlplane.view_{model}"):
                links[alert.pk] = page_link(model, key, text)
    return links
