"""Admin pages of callbacks: receiver, state and each try."""

from collections.abc import Sequence
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from controlplane import clock
from controlplane.admin.badges import callback_badge, duration, instant, page_link, with_note
from controlplane.admin.base import (
    ReadOnlyAdmin,
    Section,
    Table,
    by_number,
    column,
    confirmed_action,
)
from controlplane.admin.live import SHORT_AGE_SECONDS
from controlplane.commands.callbacks import repeat_callback
from controlplane.domain.state.states import CallbackState
from controlplane.models import Callback, Delivery
from controlplane.queries.callbacks.callbacks import list_waiting_hosts

_OPEN = (CallbackState.WAITING, CallbackState.CLAIMED)
# Choices of the filter; a search finds other receivers.
_HOSTS = 20
_SHOWN_TRIES = 50
# A job of 10,000 tasks has as many callbacks; its page shows the newest.
_SHOWN_CALLBACKS = 20


class HostFilter(admin.SimpleListFilter):
    """A filter by receiver of waiting callbacks, which a partial index finds."""

    title = "receiver"
    parameter_name = "host"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        """Return the receivers as host:port."""
        return [(host, host) for host in list_waiting_hosts(_HOSTS)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the waiting callbacks of the selected receiver; ended ones have no index."""
        chosen = self.value()
        return queryset.filter(host=chosen, state=CallbackState.WAITING) if chosen else queryset


@admin.register(Callback)
class CallbackAdmin(ReadOnlyAdmin):
    """Callbacks, newest first."""

    max_age = SHORT_AGE_SECONDS

    list_display = (
        "number",
        "about",
        "host",
        "shown_state",
        "tries",
        "created",
        "next_or_end",
    )
    sortable_by = ("number", "created")  # an index serves these
    list_filter = ("state", HostFilter)
    list_select_related = ("job", "task", "task__group")
    search_fields = ("host",)
    search_help_text = "A receiver as host:port, or the id of a job"
    actions = ("deliver_again",)
    hides_deleted = True
    defer_fields: ClassVar = ("job__spec", "job__annotation", "task__group__launch")

    def matching(self, term: str) -> Q:
        """Match whole receivers, and ids of jobs."""
        return by_number("job_id", term) if term.isdigit() else Q(host=term)

    number = column(lambda callback: callback.pk, "callback", ordering="pk")
    about = column(lambda callback: about(callback), "subject")
    shown_state = column(
        lambda callback: with_note(callback_badge(callback.state), callback.last_error[:200]),
        "state",
    )
    created = column(lambda callback: instant(callback.created_at), "created", ordering="pk")

    @admin.display(description="next try or end")
    def next_or_end(self, callback: Callback) -> SafeString | str:
        """Return the time of the next try, or of the delivery or abandonment."""
        is_waiting = callback.state == CallbackState.WAITING
        return instant(callback.due_at if is_waiting else callback.ended_at)

    @confirmed_action(
        "Deliver again",
        title="Deliver these callbacks again?",
        text="Each callback is sent at once and retried for up to one day, even if it was"
        " delivered before: its receiver may get it twice.",
        button="Deliver again",
        done="Callbacks due for delivery",
    )
    def deliver_again(self, request: HttpRequest, callback: Callback) -> None:
        """Make a callback due now, whatever its state."""
        repeat_callback(callback_id=callback.pk, actor=str(request.user), now=clock.now())

    def page_actions(self, obj: Callback) -> list[str]:
        """Return the delivery, except during a try."""
        return [] if obj.state == CallbackState.CLAIMED else ["deliver_again"]

    def heading(self, obj: Callback) -> dict[str, Any]:
        """Return its state and its last error."""
        return {
            "title": f"Callback {obj.pk}",
            "badge": callback_badge(obj.state),
            "notes": [obj.last_error],
        }

    def facts(self, obj: Callback) -> list[tuple[str, Any]]:
        """Return the subject, the receiver, and the end of the tries."""
        is_open = obj.state in _OPEN
        return [
            ("subject", about(obj)),
            ("receiver", obj.host),
            ("address", obj.url),
            ("tries", obj.tries),
            ("next try", instant(obj.due_at) if obj.state == CallbackState.WAITING else None),
            ("tried until", instant(obj.give_up_at) if is_open else None),
            ("present try ends by", instant(obj.claimed_until) if obj.claim else None),
            ("created", instant(obj.created_at)),
            ("end", instant(obj.ended_at)),
        ]

    def sections(self, obj: Callback) -> list[Section]:
        """Return the newest tries."""
        tries = Delivery.objects.filter(callback=obj).order_by("-id")[:_SHOWN_TRIES]
        return [
            Table(
                "Tries",
                columns=("try", "start", "took", "response status", "error"),
                rows=[
                    (
                        item.number,
                        instant(item.began_at),
                        duration(item.began_at, item.ended_at),
                        item.status or "none",
                        item.error,
                    )
                    for item in tries
                ],
                empty="no try yet",
            )
        ]


def about(callback: Callback) -> SafeString | str:
    """Return a link to the job or task of the callback."""
    task = callback.task
    if task is None:
        return page_link("job", callback.job_id, callback.job)
    return page_link("task", task.pk, f"{task.group.name}.{task.index} of {callback.job}")


def callback_section(found: QuerySet[Callback]) -> list[Section]:
    """Return the section of the callbacks of a job or a task; none without callbacks."""
    rows = list(
        found.select_related("job", "task", "task__group")
        .defer("job__spec", "job__annotation", "task__group__launch")
        .order_by("-id")[:_SHOWN_CALLBACKS]
    )
    if not rows:
        return []
    return [
        Table(
            "Callbacks" if len(rows) < _SHOWN_CALLBACKS else f"Callbacks (the newest {len(rows)})",
            columns=("callback", "subject", "receiver", "state", "tries", "next try", "end"),
            rows=[
                (
                    page_link("callback", item.pk, item.pk),
                    about(item),
                    item.host,
                    with_note(callback_badge(item.state), item.last_error[:200]),
                    item.tries,
                    instant(item.due_at if item.state == CallbackState.WAITING else None),
                    instant(item.ended_at),
                )
                for item in rows
            ],
        )
    ]
