"""Admin pages of the rules of notifications: what waits, the latest message, and the form."""

from typing import Any

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from controlplane import clock
from controlplane.admin.badges import NOTHING, flag_badge, instant, page_link, with_note
from controlplane.admin.base import Section, Table, column, confirmed_action, loaded_column
from controlplane.admin.notifications.base import ConfiguredAdmin
from controlplane.admin.notifications.messages import messages_table, state_of
from controlplane.admin.notifications.rule_form import FIELDSETS, NotificationRuleForm
from controlplane.commands.notifications.configure import delete_rule, put_rule, send_test
from controlplane.domain.notifications.windows import next_message_at
from controlplane.models import NotificationEvent, NotificationMessage, NotificationRule
from controlplane.queries.notifications import describe_rule, timing_of
from controlplane.queries.pages.notifications import RuleState, load_rule_states

_SHOWN_EVENTS = 20
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_SELECTIONS = ("kinds", "projects", "states", "name_pattern", "label")


@admin.register(NotificationRule)
class NotificationRuleAdmin(ConfiguredAdmin):
    """Rules by name, with the state of the latest message of each."""

    form = NotificationRuleForm
    list_display = (
        "name",
        "shown_state",
        "reports",
        "address_link",
        "latest",
        "tries",
        "waiting",
        "next_message",
    )
    list_filter = ("about", "address")
    list_select_related = ("address",)
    search_fields = ("name",)
    defer_fields = ("address__sealed",)
    actions = ("send_tests",)

    shown_state = column(lambda rule: _state(rule), "state")
    reports = column(lambda rule: _selection(rule), "reports")
    address_link = column(
        lambda rule: page_link("notificationaddress", rule.address_id, rule.address), "address"
    )
    latest = loaded_column(lambda rule, state: _latest(state), "latest message")
    tries = loaded_column(
        lambda rule, state: state.message.tries if state.message else NOTHING, "tries"
    )
    waiting = loaded_column(lambda rule, state: _waiting(rule, state), "events that wait")
    next_message = loaded_column(lambda rule, state: _next(rule, state), "next message")

    def load(self, rows: list[Any]) -> Any:
        """Return what waits, and the latest message of each rule."""
        return load_rule_states([row.pk for row in rows])

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """Return the fields by subject."""
        return FIELDSETS

    def save_model(
        self, request: HttpRequest, obj: NotificationRule, form: Any, change: bool
    ) -> None:
        """Write the rule with the command that the API uses."""
        put_rule(name=obj.name, wanted=form.wanted, now=clock.now())
        obj.pk = NotificationRule.objects.only("pk").get(name=obj.name).pk

    def delete_model(self, request: HttpRequest, obj: NotificationRule) -> None:
        """Delete the rule; what it has not reported is not reported."""
        delete_rule(name=obj.name, now=clock.now())

    @confirmed_action(
        "Send a test",
        title="Send a test to the addresses of these rules?",
        text="Each address gets one message, which is tried once. Its page has the result.",
        button="Send a test",
        done="Tests due for sending",
    )
    def send_tests(self, request: HttpRequest, rule: NotificationRule) -> None:
        """Add a test message to the address of a rule."""
        send_test(name=rule.address.name, now=clock.now())

    def page_actions(self, obj: NotificationRule) -> list[str]:
        """Return the test."""
        return ["send_tests"]

    def heading(self, obj: NotificationRule) -> dict[str, Any]:
        """Return the name and the state."""
        return {"title": f"Notification rule {obj.name}", "badge": _state(obj)}

    def facts(self, obj: NotificationRule) -> list[tuple[str, Any]]:
        """Return what the rule selects, when it sends, and what waits."""
        quiet = describe_rule(obj)["quiet_hours"]
        days = ", ".join(_WEEKDAYS[day] for day in obj.quiet_weekdays) or "every day"
        return [
            ("address", self.address_link(obj)),
            ("reports", _selection(obj)),
            ("events that wait", self.waiting(obj)),
            ("next message", self.next_message(obj)),
            ("from the first event to its message", f"{obj.group_wait_seconds} s"),
            ("between two messages, at least", f"{obj.group_interval_seconds} s"),
            (
                "quiet hours",
                f"{quiet['begin']} to {quiet['end']} {quiet['time_zone']}, {days}"
                if quiet
                else "none",
            ),
            (
                "critical alerts in quiet hours",
                ("are sent" if obj.critical_passes else "wait") if quiet else None,
            ),
            ("reports events from", instant(obj.since)),
            ("last message composed", instant(obj.last_at)),
        ]

    def sections(self, obj: NotificationRule) -> list[Section]:
        """Return the first events that wait, and the newest messages."""
        unsent = NotificationEvent.objects.filter(rule=obj, sent_at=None).order_by("at", "id")
        return [
            Table(
                "Events that wait",
                anchor="waiting",
                columns=("since", "event"),
                rows=[(instant(event.at), event.line) for event in unsent[:_SHOWN_EVENTS]],
            ),
            messages_table(NotificationMessage.objects.filter(rule=obj), rule__id__exact=obj.pk),
        ]


def _state(rule: NotificationRule) -> SafeString:
    if not rule.is_enabled:
        return flag_badge("disabled", good=False)
    quiet = timing_of(rule).quiet
    until = quiet.end_at(clock.now()) if quiet else None
    badge = flag_badge("enabled", good=True)
    return (
        badge if until is None else with_note(badge, format_html("quiet until {}", instant(until)))
    )


def _selection(rule: NotificationRule) -> str:
    """Return what a rule reports in words."""
    document = describe_rule(rule)
    critical = "critical " if rule.only_critical else ""
    parts = [
        f"{name.replace('_', ' ')} {_listed(document[name])}"
        for name in _SELECTIONS
        if document[name]
    ]
    return f"{critical}{rule.about}" + (f": {'; '.join(parts)}" if parts else "")


def _listed(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


def _latest(state: RuleState) -> SafeString | str:
    if state.message is None:
        return "none yet"
    shown = state_of(state.message)
    link = page_link("notificationmessage", state.message.pk, f"message {state.message.pk}")
    return format_html("{} {}", link, shown)


def _waiting(rule: NotificationRule, state: RuleState) -> SafeString | str:
    if not state.unsent:
        return NOTHING
    address = page_link("notificationrule", rule.pk, f"{state.unsent:,}", anchor="waiting")
    link = format_html("{}", address)
    if state.pending.first_at is None:
        return link
    return with_note(link, format_html("since {}", instant(state.pending.first_at)))


def _next(rule: NotificationRule, state: RuleState) -> SafeString | str:
    if not rule.is_enabled:
        return NOTHING
    if state.message is not None and state.message.ended_at is None:
        return "after the present one"
    at = next_message_at(state.pending, rule.last_at, timing_of(rule), now=clock.now())
    return instant(at)
