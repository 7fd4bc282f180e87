"""Admin pages of messages: address, rule, tries and the last error."""

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.utils.safestring import SafeString

from controlplane.admin.badges import callback_badge, instant, list_link, page_link, with_note
from controlplane.admin.base import (
    IndexedFilter,
    MonospaceText,
    ReadOnlyAdmin,
    Section,
    Table,
    column,
)
from controlplane.admin.live import SHORT_AGE_SECONDS
from controlplane.domain.state.states import CallbackState
from controlplane.models import NotificationMessage

_SHOWN = 20


class UnsentFilter(IndexedFilter):
    """A filter by whether messages have tries before them."""

    title = "unsent"
    parameter_name = "open"
    options: ClassVar = {"yes": ("unsent", Q(ended_at=None))}


@admin.register(NotificationMessage)
class NotificationMessageAdmin(ReadOnlyAdmin):
    """Messages, newest first."""

    list_display = (
        "number",
        "title",
        "address",
        "source",
        "shown_state",
        "tries",
        "created",
        "next_or_end",
    )
    list_display_links = ("number", "title")
    sortable_by = ("number", "created")
    list_filter = (UnsentFilter, "state", "address", "rule")
    list_select_related = ("address", "rule")
    max_age = SHORT_AGE_SECONDS
    defer_fields: ClassVar = ("address__sealed",)

    number = column(lambda message: message.pk, "message", ordering="pk")
    source = column(lambda message: source_of(message), "rule")
    shown_state = column(lambda message: state_of(message), "state")
    created = column(lambda message: instant(message.created_at), "created", ordering="pk")
    next_or_end = column(lambda message: next_or_end(message), "next try or end")

    def heading(self, obj: NotificationMessage) -> dict[str, Any]:
        """Return its title, its state and its last error."""
        badge = callback_badge(obj.state)
        return {"title": f"Message {obj.pk}", "badge": badge, "notes": [obj.last_error]}

    def facts(self, obj: NotificationMessage) -> list[tuple[str, Any]]:
        """Return the address, the rule, and the tries."""
        is_open = obj.ended_at is None
        return [
            ("title", obj.title),
            ("address", page_link("notificationaddress", obj.address_id, obj.address)),
            ("rule", source_of(obj)),
            ("tries", str(obj.tries)),
            ("next try", instant(obj.due_at) if obj.state == CallbackState.WAITING else None),
            ("tried until", instant(obj.give_up_at) if is_open and not obj.is_test else None),
            ("present try ends by", instant(obj.claimed_until) if obj.claim else None),
            ("created", instant(obj.created_at)),
            ("end", instant(obj.ended_at)),
        ]

    def sections(self, obj: NotificationMessage) -> list[Section]:
        """Return the text."""
        return [MonospaceText("Text", text=obj.body)]


def source_of(message: NotificationMessage) -> SafeString | str:
    """Return the rule of a message."""
    if message.is_test:
        return "test"
    return page_link("notificationrule", message.rule_id, message.rule)


def state_of(message: NotificationMessage | None) -> SafeString | str:
    """Return the state with the last error."""
    if message is None:
        return "none yet"
    return with_note(callback_badge(message.state), message.last_error[:200])


def next_or_end(message: NotificationMessage) -> SafeString | str:
    """Return the time of the next try, or of the end."""
    is_waiting = message.state == CallbackState.WAITING
    return instant(message.due_at if is_waiting else message.ended_at)


def messages_table(found: QuerySet[NotificationMessage], **query: Any) -> Table:
    """Return the newest messages; `query` selects all of them in the list."""
    listed = found.select_related("address", "rule").defer("body", "address__sealed")
    return Table(
        "Latest messages",
        anchor="messages",
        columns=("message", "title", "rule", "state", "tries", "created", "next try or end"),
        rows=[
            (
                page_link("notificationmessage", message.pk, message.pk),
                message.title,
                source_of(message),
                state_of(message),
                message.tries,
                instant(message.created_at),
                next_or_end(message),
            )
            for message in listed.order_by("-pk")[:_SHOWN]
        ],
        empty="none yet",
        more=list_link("notificationmessage", "All messages", **query),
    )
