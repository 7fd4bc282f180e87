"""Admin pages of the addresses of notifications. Their URLs can be written, but are never shown."""

from typing import Any, ClassVar

from django import forms
from django.apps import apps
from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from controlplane import clock
from controlplane.admin.badges import count_link, instant, page_link
from controlplane.admin.base import Section, Table, column, confirmed_action, loaded_column
from controlplane.admin.fields import check_name
from controlplane.admin.notifications.base import ConfiguredAdmin
from controlplane.admin.notifications.messages import messages_table, state_of
from controlplane.commands.notifications.configure import (
    check_address,
    delete_address,
    put_address,
    send_test,
)
from controlplane.commands.notifications.requests import NotificationAddressRequest
from controlplane.models import NotificationAddress, NotificationMessage
from controlplane.queries.pages.notifications import load_address_states
from controlplane.spec import InvalidSpec
from controlplane.spec.parsing import parse_part

if apps.is_installed("unfold"):
    from unfold.widgets import UnfoldAdminPasswordWidget as PasswordInput
else:
    from django.forms import PasswordInput


class NotificationAddressForm(forms.ModelForm):
    """The name of a new address, and the URL."""

    url = forms.CharField(
        label="URL",
        required=False,  # its model reports that, as the API does
        widget=PasswordInput(render_value=False, attrs={"autocomplete": "new-password"}),
        help_text="Of Apprise, such as <code>mailtos://user:password@example.org</code>. It is"
        " stored sealed and never shown again.",
    )

    class Meta:
        model = NotificationAddress
        fields = ("name",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        name: Any = self.fields.get("name")
        if name is not None:
            name.validators.append(check_name)

    def clean_url(self) -> str:
        """Return the URL. Raise ValidationError, without any part of it."""
        url: str = self.cleaned_data["url"]
        try:
            parse_part(NotificationAddressRequest, {"url": url})
            check_address(url)
        except InvalidSpec as error:
            raise forms.ValidationError([fault.detail for fault in error.faults]) from None
        return url


@admin.register(NotificationAddress)
class NotificationAddressAdmin(ConfiguredAdmin):
    """Addresses by name."""

    form = NotificationAddressForm
    list_display = ("name", "service", "masked", "rules_now", "open_now", "latest")
    search_fields = ("name",)
    defer_fields: ClassVar = ("sealed",)
    actions = ("send_tests",)

    rules_now = loaded_column(
        lambda address, state: count_link(
            "notificationrule", state.rules, address__id__exact=address.pk
        ),
        "rules",
    )
    open_now = loaded_column(
        lambda address, state: count_link(
            "notificationmessage", state.open_messages, address__id__exact=address.pk, open="yes"
        ),
        "unsent messages",
    )
    latest = loaded_column(lambda address, state: state_of(state.message), "latest message")
    changed = column(lambda address: instant(address.updated_at), "changed")

    def load(self, rows: list[Any]) -> Any:
        """Return the rules and messages of each address."""
        return load_address_states([row.pk for row in rows])

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """Return the name and the URL."""
        return [(None, {"fields": ("name", "url")})]

    def save_model(
        self, request: HttpRequest, obj: NotificationAddress, form: Any, change: bool
    ) -> None:
        """Write the address with the command that the API uses."""
        put_address(name=obj.name, url=form.cleaned_data["url"], now=clock.now())
        obj.pk = NotificationAddress.objects.only("pk").get(name=obj.name).pk

    def delete_model(self, request: HttpRequest, obj: NotificationAddress) -> None:
        """Delete the address with its rules and messages."""
        delete_address(name=obj.name, now=clock.now())

    @confirmed_action(
        "Send a test",
        title="Send a test to these addresses?",
        text="Each address gets one message, which is tried once. Its page has the result.",
        button="Send a test",
        done="Tests due for sending",
    )
    def send_tests(self, request: HttpRequest, address: NotificationAddress) -> None:
        """Add a test message to an address."""
        send_test(name=address.name, now=clock.now())

    def page_actions(self, obj: NotificationAddress) -> list[str]:
        """Return the test."""
        return ["send_tests"]

    def heading(self, obj: NotificationAddress) -> dict[str, Any]:
        """Return the name."""
        return {"title": f"Notification address {obj.name}"}

    def facts(self, obj: NotificationAddress) -> list[tuple[str, Any]]:
        """Return the service, and the counts."""
        return [
            ("service", obj.service),
            ("URL", obj.masked),
            ("rules", self.rules_now(obj)),
            ("unsent messages", self.open_now(obj)),
            ("created", instant(obj.created_at)),
            ("changed", instant(obj.updated_at)),
        ]

    def sections(self, obj: NotificationAddress) -> list[Section]:
        """Return the rules and the newest messages."""
        sent: QuerySet[NotificationMessage] = NotificationMessage.objects.filter(address=obj)
        rules = obj.rules.order_by("name")
        return [
            Table(
                "Rules",
                columns=("rule", "about", "enabled"),
                rows=[
                    (
                        page_link("notificationrule", rule.pk, rule.name),
                        rule.about,
                        "yes" if rule.is_enabled else "no",
                    )
                    for rule in rules
                ],
            ),
            messages_table(sent, address__id__exact=obj.pk),
        ]
