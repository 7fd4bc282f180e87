"""Admin pages of alerts, dead letters and the audit log."""

from collections.abc import Sequence
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString

from controlplane import clock
from controlplane.admin.badges import flag_badge, instant
from controlplane.admin.base import ActionConfirmation, MonospaceText, ReadOnlyAdmin, Section
from controlplane.commands.state.findings import close_alert
from controlplane.models import Alert, AuditLine, DeadLetter


class ClearedFilter(admin.SimpleListFilter):
    """Open alerts alone, or all."""

    title = "open"
    parameter_name = "open"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        """One choice beside all."""
        return (("yes", "Open"),)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The alerts chosen."""
        return queryset.filter(cleared_at=None) if self.value() == "yes" else queryset


@admin.register(Alert)
class AlertAdmin(ReadOnlyAdmin):
    """Alerts, newest first; what raised one closes it, as operators can."""

    list_display = ("kind", "subject", "shown_state", "text", "raised", "again", "cleared")
    list_filter = (ClearedFilter,)
    search_fields = ("kind",)
    search_help_text = "A kind of alert, or its subject"
    actions = ("close_alerts",)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Alert], search_term: str
    ) -> tuple[QuerySet[Alert], bool]:
        """Whole kinds and subjects."""
        term = search_term.strip()
        if not term:
            return queryset, False
        return queryset.filter(kind=term) | queryset.filter(subject=term), False

    @admin.display(description="state")
    def shown_state(self, alert: Alert) -> SafeString:
        """Whether it is open."""
        return flag_badge("closed" if alert.cleared_at else "open", good=bool(alert.cleared_at))

    @admin.display(description="raised", ordering="pk")
    def raised(self, alert: Alert) -> SafeString | str:
        """When it was raised."""
        return instant(alert.raised_at)

    @admin.display(description="last found so")
    def again(self, alert: Alert) -> SafeString | str:
        """When it was last raised again."""
        return instant(alert.last_raised_at)

    @admin.display(description="closed")
    def cleared(self, alert: Alert) -> SafeString | str:
        """When it was closed."""
        return instant(alert.cleared_at)

    def heading(self, obj: Alert) -> dict[str, Any]:
        """Whether it is open."""
        return {"badge": self.shown_state(obj), "notes": [obj.text]}

    def facts(self, obj: Alert) -> list[tuple[str, Any]]:
        """Of what, and when."""
        return [
            ("kind", obj.kind),
            ("subject", obj.subject),
            ("raised", instant(obj.raised_at)),
            ("last found so", instant(obj.last_raised_at)),
            ("closed", instant(obj.cleared_at)),
        ]

    def page_actions(self, obj: Alert) -> list[str]:
        """An open one can be closed."""
        return [] if obj.cleared_at else ["close_alerts"]

    @admin.action(description="Close alert", permissions=["operate"])
    def close_alerts(self, request: HttpRequest, rows: QuerySet[Alert]) -> HttpResponse | None:
        """Close alerts by hand; an audit line has the actor and the reason."""
        reason = request.POST.get("reason", "")

        def close(alert: Alert) -> None:
            actor = str(request.user)
            close_alert(alert_id=alert.pk, actor=actor, reason=reason, now=clock.now())

        question = ActionConfirmation(
            action="close_alerts",
            title="Close these alerts?",
            text="Closing one changes nothing of what it is about: as long as that is found again,"
            " the alert is raised again.",
            button="Close alerts",
            done="Alerts closed",
            act=close,
            fields=("reason",),
        )
        return self.confirmed(request, rows, question)


@admin.register(DeadLetter)
class DeadLetterAdmin(ReadOnlyAdmin):
    """Messages that could not be applied, newest first."""

    list_display = ("number", "source", "error", "arrived")
    list_display_links = ("number", "error")
    defer_fields: ClassVar = ("body",)

    @admin.display(description="letter", ordering="pk")
    def number(self, letter: DeadLetter) -> int:
        """Its id."""
        return letter.pk

    @admin.display(description="at", ordering="pk")
    def arrived(self, letter: DeadLetter) -> SafeString | str:
        """When it came."""
        return instant(letter.at)

    def facts(self, obj: DeadLetter) -> list[tuple[str, Any]]:
        """Whose it is, and when."""
        return [("source", obj.source), ("at", instant(obj.at))]

    def sections(self, obj: DeadLetter) -> list[Section]:
        """What was wrong, and the message itself."""
        return [MonospaceText("Error", text=obj.error), MonospaceText("Message", text=obj.body)]


@admin.register(AuditLine)
class AuditAdmin(ReadOnlyAdmin):
    """Permanent actions, newest first: deletions, and alerts closed by hand, with their actors."""

    list_display = ("number", "when", "action", "subject", "actor", "text")
    list_display_links = ("number", "subject")
    search_fields = ("subject",)
    search_help_text = "A part of the subject, or the whole name of the actor"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[AuditLine], search_term: str
    ) -> tuple[QuerySet[AuditLine], bool]:
        """Search parts of subjects, which reads every line: a rare search may be slow."""
        term = search_term.strip()
        if not term:
            return queryset, False
        found = queryset.filter(subject__icontains=term) | queryset.filter(actor=term)
        return found, False

    @admin.display(description="line", ordering="pk")
    def number(self, line: AuditLine) -> int:
        """Its id."""
        return line.pk

    @admin.display(description="when", ordering="pk")
    def when(self, line: AuditLine) -> SafeString | str:
        """When it was done."""
        return instant(line.at)

    def facts(self, obj: AuditLine) -> list[tuple[str, Any]]:
        """Return the actor, the action and the subject."""
        return [
            ("when", instant(obj.at)),
            ("who", obj.actor),
            ("what", obj.action),
            ("to what", obj.subject),
        ]

    def sections(self, obj: AuditLine) -> list[Section]:
        """What else is known."""
        return [MonospaceText("Details", text=obj.text)] if obj.text else []
