"""Admin pages of dead letters and the audit log."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from controlplane.admin.badges import NOTHING, instant, shortened
from controlplane.admin.base import (
    MonospaceText,
    ReadOnlyAdmin,
    Section,
    Table,
    column,
)
from controlplane.admin.live import SHORT_AGE_SECONDS
from controlplane.commands.audit import Action
from controlplane.models import AuditLine, DeadLetter

_CHANGES_WIDTH = 90


@admin.register(DeadLetter)
class DeadLetterAdmin(ReadOnlyAdmin):
    """Messages that could not be applied, newest first."""

    max_age = SHORT_AGE_SECONDS

    list_display = ("number", "source", "error", "arrived")
    list_display_links = ("number", "error")
    defer_fields: ClassVar = ("body",)

    number = column(lambda letter: letter.pk, "dead letter", ordering="pk")
    arrived = column(lambda letter: instant(letter.at), "received", ordering="pk")

    def facts(self, obj: DeadLetter) -> list[tuple[str, Any]]:
        return [("source", obj.source), ("received", instant(obj.at))]

    def sections(self, obj: DeadLetter) -> list[Section]:
        return [MonospaceText("Error", text=obj.error), MonospaceText("Message", text=obj.body)]


class ActionFilter(admin.SimpleListFilter):
    """A filter for one action."""

    title = "action"
    parameter_name = "action"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        """Return all actions."""
        return [(action.value, action.value) for action in sorted(Action)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the lines of the selected action."""
        return queryset.filter(action=self.value()) if self.value() else queryset


@admin.register(AuditLine)
class AuditAdmin(ReadOnlyAdmin):
    """Audit lines, newest first."""

    list_display = ("number", "when", "action", "subject", "actor", "through", "address", "details")
    list_display_links = ("number", "subject")
    sortable_by = ("number", "when")  # an index serves these
    list_filter = (ActionFilter, "via")
    list_select_related = ("project__domain", "domain")
    search_fields = ("subject",)
    linked_lookups = ("subject__exact",)
    search_help_text = "A part of the subject, or a whole actor, token, address or request id"

    def matching(self, term: str) -> Q:
        """Match parts of subjects, without an index: a search reads every line and may be slow."""
        whole = Q(actor=term) | Q(token=term) | Q(address=term) | Q(request_id=term)
        return whole | Q(subject__icontains=term)

    number = column(lambda line: line.pk, "line", ordering="pk")
    when = column(lambda line: instant(line.at), "when", ordering="pk")
    details = column(lambda line: line.text or _changes(line) or None, "details")
    through = column(lambda line: f"token {line.token}" if line.token else line.via, "through")

    def facts(self, obj: AuditLine) -> list[tuple[str, Any]]:
        domain = obj.domain or (obj.project and obj.project.domain)
        return [
            ("when", instant(obj.at)),
            ("actor", obj.actor),
            ("through", self.through(obj)),
            ("address", obj.address),
            ("request id", obj.request_id),
            ("action", obj.action),
            ("subject", obj.subject),
            ("domain", domain and domain.name),
            ("project", obj.project and obj.project.name),
        ]

    def sections(self, obj: AuditLine) -> list[Section]:
        before, after = obj.before or {}, obj.after or {}
        rows = [(name, _shown(before, name), _shown(after, name)) for name in {**before, **after}]
        found: list[Section] = []
        if obj.text:
            found.append(MonospaceText("Details", text=obj.text))
        if rows:
            found.append(Table("Change", columns=("field", "before", "after"), rows=rows))
        return found


def _changes(line: AuditLine) -> str:
    """Return the change in one line: `role: viewer → manager`, or `role: viewer` if it is new."""
    before, after = line.before or {}, line.after or {}
    changes = []
    for name in {**before, **after}:
        values = [_shown(side, name) for side in (before, after) if name in side]
        if before.get(name) or after.get(name):
            changes.append(f"{name}: {' → '.join(values)}")
    return shortened(", ".join(changes), _CHANGES_WIDTH)


def _shown(values: Mapping[str, Any], name: str) -> str:
    if name not in values:
        return NOTHING
    value = values[name]
    return value if isinstance(value, str) else json.dumps(value)
