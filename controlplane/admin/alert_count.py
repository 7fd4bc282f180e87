"""The number of open alerts, which the header of each page has."""

from collections.abc import Mapping
from typing import Any

from django import template

from controlplane.queries.views.overviews import count_open_alerts

register = template.Library()


@register.inclusion_tag("controlplane/open_alerts.html", takes_context=True)
def open_alerts(context: Mapping[str, Any]) -> dict[str, Any]:
    """Render the link to the open alerts, for users that may view alerts."""
    count = 0
    if context["request"].user.has_perm("controlplane.view_alert"):
        loaded = context.get("open_alerts")
        count = count_open_alerts() if loaded is None else loaded
    return {"count": count, "is_replaced": "page_frame" in context}
