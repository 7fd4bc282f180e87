"""Admin pages of alerts: each has what it means, what to do, and what it affects."""

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest

from controlplane import clock
from controlplane.admin.alerts.affected import affected, explanation, subject_section
from controlplane.admin.badges import flag_badge, instant
from controlplane.admin.base import (
    IndexedFilter,
    ReadOnlyAdmin,
    Section,
    column,
    confirmed_action,
)
from controlplane.admin.fields import read_reason
from controlplane.commands.state.findings import close_alert
from controlplane.models import Alert


class ClearedFilter(IndexedFilter):
    """A filter for open alerts."""

    title = "state"
    parameter_name = "open"
    options: ClassVar = {"yes": ("Open", Q(cleared_at=None))}


@admin.register(Alert)
class AlertAdmin(ReadOnlyAdmin):
    """Alerts, newest first. The check that raised one closes it; operators may close it, too."""

    list_display = ("kind", "subject", "shown_state", "text", "raised", "again", "cleared")
    list_filter = (ClearedFilter,)
    search_fields = ("kind",)
    search_help_text = "The whole kind or subject of an alert"
    actions = ("close_alerts",)

    def matching(self, term: str) -> Q:
        """Match whole kinds and subjects."""
        return Q(kind=term) | Q(subject=term)

    shown_state = column(
        lambda alert: flag_badge(
            "closed" if alert.cleared_at else "open", good=bool(alert.cleared_at)
        ),
        "state",
    )
    raised = column(lambda alert: instant(alert.raised_at), "raised", ordering="pk")
    again = column(lambda alert: instant(alert.last_raised_at), "last raised")
    cleared = column(lambda alert: instant(alert.cleared_at), "closed")

    def heading(self, obj: Alert) -> dict[str, Any]:
        return {"badge": self.shown_state(obj), "notes": [obj.text]}

    def facts(self, obj: Alert) -> list[tuple[str, Any]]:
        return [
            ("kind", obj.kind),
            ("raised", instant(obj.raised_at)),
            ("last raised", instant(obj.last_raised_at)),
            ("closed", instant(obj.cleared_at)),
        ]

    def sections_for(self, request: HttpRequest, obj: Alert) -> list[Section]:
        """Return its meaning, what to do, its subject, and what it affects."""
        models = ("attempt", "cell", "job", "task")
        viewable = {it for it in models if request.user.has_perm(f"controlplane.view_{it}")}
        subject = subject_section(obj, request.user)
        return [*explanation(obj), *subject, *affected(obj, viewable)]

    def page_actions(self, obj: Alert) -> list[str]:
        return [] if obj.cleared_at else ["close_alerts"]

    @confirmed_action(
        "Close alert",
        title="Close these alerts?",
        text="Closing an alert does not repair its cause. If the cause persists, the alert is"
        " raised again.",
        button="Close alerts",
        done="Alerts closed",
        fields=("reason",),
    )
    def close_alerts(self, request: HttpRequest, alert: Alert) -> None:
        """Close an alert manually; the audit log records the actor and the reason."""
        reason, actor = read_reason(request), str(request.user)
        close_alert(alert_id=alert.pk, actor=actor, reason=reason, now=clock.now())
