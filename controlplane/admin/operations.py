"""What operators must see of the system itself: alerts, dead letters, ticks."""

from collections.abc import Sequence
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from controlplane.admin.badges import duration, flag_badge, instant
from controlplane.admin.base import ReadOnlyAdmin, Section, Text
from controlplane.models import Alert, DeadLetter, TickState


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
    """Alerts, newest first; what raised one clears it."""

    list_display = ("kind", "subject", "shown_state", "text", "raised", "cleared")
    list_filter = (ClearedFilter,)

    @admin.display(description="state")
    def shown_state(self, alert: Alert) -> SafeString:
        """Whether it is open."""
        return flag_badge("cleared" if alert.cleared_at else "open", good=bool(alert.cleared_at))

    @admin.display(description="raised", ordering="pk")
    def raised(self, alert: Alert) -> SafeString | str:
        """When it was raised."""
        return instant(alert.raised_at)

    @admin.display(description="cleared")
    def cleared(self, alert: Alert) -> SafeString | str:
        """When it was cleared."""
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
            ("cleared", instant(obj.cleared_at)),
        ]


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
        return [Text("Error", text=obj.error), Text("Message", text=obj.body)]


@admin.register(TickState)
class TickAdmin(ReadOnlyAdmin):
    """The ticks and when they last ran."""

    ordering: ClassVar = ("name",)
    list_display = ("name", "finished", "took", "mark")

    @admin.display(description="last end")
    def finished(self, tick: TickState) -> SafeString | str:
        """When its last run ended."""
        return instant(tick.finished_at)

    @admin.display(description="took")
    def took(self, tick: TickState) -> str:
        """How long that run took."""
        return duration(tick.started_at, tick.finished_at)

    def facts(self, obj: TickState) -> list[tuple[str, Any]]:
        """The last run and what it did."""
        return [
            ("last start", instant(obj.started_at)),
            ("last end", instant(obj.finished_at)),
            ("took", duration(obj.started_at, obj.finished_at)),
            ("looked at everything", instant(obj.covered_at)),
            ("wakes that found it busy", obj.mark),
            *((name, number) for name, number in obj.counts.items()),
        ]
