"""The form of a rule of notifications: its fields are those of the API, which checks them."""

import calendar
from collections.abc import Mapping
from typing import Any, get_args

from django import forms
from django.apps import apps
from django.core.exceptions import ValidationError

from controlplane.admin.fields import (
    Checkboxes,
    Select,
    Textarea,
    TextInput,
    check_name,
)
from controlplane.commands.notifications.configure import RuleFields
from controlplane.commands.notifications.requests import FinalState, NotificationRuleRequest
from controlplane.domain.alerts import ALERTS
from controlplane.domain.state.states import NotifyAbout
from controlplane.models import NotificationAddress, NotificationRule
from controlplane.queries.notifications import describe_rule
from controlplane.spec import InvalidSpec
from controlplane.spec.parsing import parse_part

if apps.is_installed("unfold"):
    from unfold.widgets import UnfoldAdminIntegerFieldWidget as NumberInput
    from unfold.widgets import UnfoldBooleanWidget as CheckboxInput
else:
    from django.forms import CheckboxInput, NumberInput

_QUIET = ("time_zone", "begin", "end", "weekdays")

FIELDSETS = (
    (None, {"fields": ("name", "address", "enabled", "about")}),
    ("Alerts that are reported", {"fields": ("kinds", "only_critical")}),
    (
        "Ended jobs that are reported",
        {"fields": ("projects", "states", "name_pattern", "label")},
    ),
    ("Grouping", {"fields": ("group_wait_seconds", "group_interval_seconds")}),
    ("Quiet hours", {"fields": (*_QUIET, "critical_passes")}),
)


def _text(**options: Any) -> Any:
    return forms.CharField(required=False, widget=TextInput(), **options)


def _flag(**options: Any) -> Any:
    return forms.BooleanField(required=False, widget=CheckboxInput(), **options)


class LinesField(forms.CharField):
    """Texts, one per line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(required=False, widget=Textarea(attrs={"rows": 3}), **options)

    def prepare_value(self, value: Any) -> Any:
        """Return the texts of a row as lines."""
        return "\n".join(value) if isinstance(value, list) else value

    def clean(self, value: Any) -> list[str]:
        """Return the texts."""
        return [line.strip() for line in super().clean(value).splitlines() if line.strip()]


def _default(name: str) -> Any:
    return NotificationRuleRequest.model_fields[name].default


class NotificationRuleForm(forms.ModelForm):
    """A rule. An empty selection selects everything, and all selections must match."""

    address = forms.ModelChoiceField(
        NotificationAddress.objects.defer("sealed").order_by("name"), widget=Select()
    )
    enabled = _flag(initial=True, help_text="Whether the rule collects and sends.")
    about = forms.ChoiceField(
        choices=[(it.value, it.value) for it in NotifyAbout],
        widget=Select(),
        help_text="Alerts, or ends of jobs.",
    )
    kinds = forms.MultipleChoiceField(
        required=False,
        choices=[(name, name) for name in ALERTS],
        widget=Checkboxes(),
        help_text="None: all.",
    )
    only_critical = _flag(help_text="Only critical alerts.")
    projects = LinesField(help_text="As domain/project, one per line. Empty: all.")
    states = forms.MultipleChoiceField(
        required=False,
        choices=[(name, name.lower()) for name in get_args(FinalState)],
        widget=Checkboxes(),
        help_text="Final states. None: all.",
    )
    name_pattern = _text(help_text="Of names of jobs, such as nightly-*. Empty: all.")
    label = _text(help_text="The value of the label notify of jobs. Empty: any job.")
    group_wait_seconds = forms.IntegerField(
        initial=_default("group_wait_seconds"),
        widget=NumberInput(),
        help_text="Seconds from the first event to its message.",
    )
    group_interval_seconds = forms.IntegerField(
        initial=_default("group_interval_seconds"),
        widget=NumberInput(),
        help_text="Seconds between two messages, at least.",
    )
    time_zone = _text(help_text="Such as Europe/Berlin. Empty: no quiet hours.")
    begin = _text(help_text="Local time, such as 22:00.")
    end = _text(help_text="Local time, such as 07:00. Not after the begin: on the next day.")
    weekdays = forms.TypedMultipleChoiceField(
        required=False,
        coerce=int,
        choices=list(enumerate(calendar.day_name)),
        widget=Checkboxes(),
        help_text="Days on which they begin. None: all.",
    )
    critical_passes = _flag(
        initial=_default("critical_passes"),
        help_text="Whether critical alerts are sent in quiet hours.",
    )

    class Meta:
        model = NotificationRule
        fields = ("name",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        instance = kwargs.get("instance")
        if instance is not None and instance.pk is not None:
            kwargs["initial"] = _initial(instance) | (kwargs.get("initial") or {})
        super().__init__(*args, **kwargs)
        name: Any = self.fields.get("name")
        if name is not None:
            name.validators.append(check_name)
        self.wanted: RuleFields | None = None

    def clean(self) -> dict[str, Any]:
        """Return the fields. Add the faults that the API reports, each at its field."""
        found: dict[str, Any] = super().clean() or {}
        if self.errors:
            return found
        try:
            self.wanted = parse_part(NotificationRuleRequest, _document(found)).fields()
        except InvalidSpec as error:
            for fault in error.faults:
                name = fault.field.partition("[")[0].removeprefix("quiet_hours").lstrip(".")
                self.add_error(
                    name if name in self.fields else "begin" if not name else None,
                    ValidationError(fault.detail),
                )
        return found

    def _get_validation_exclusions(self) -> set[str]:
        """Return all columns but the name: the model of the API has checked the others."""
        names = {field.name for field in NotificationRule._meta.get_fields()}
        return names - ({"name"} & self.fields.keys())


def _document(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of the API's request."""
    quiet = {name: found[name] for name in _QUIET}
    return {
        **{name: value for name, value in found.items() if name not in ("name", *_QUIET)},
        "address": found["address"].name,
        "quiet_hours": quiet if any(quiet.values()) else None,
    }


def _initial(rule: NotificationRule) -> dict[str, Any]:
    document = describe_rule(rule)
    quiet = document.pop("quiet_hours") or {}
    return {**document, **quiet, "address": rule.address_id}
