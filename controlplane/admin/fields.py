"""Form fields for amounts of resources and installed plugins, names and reasons."""

import math
from collections.abc import Mapping
from typing import Any

from django import forms
from django.apps import apps
from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.db.models import QuerySet
from django.http import HttpRequest

from controlplane import plugins
from controlplane.contract.codec import clean_text
from controlplane.domain.convergence.policy import DRAIN_SECONDS
from controlplane.spec import Fault, InvalidSpec, UnreadableDocument, read_document
from controlplane.spec.fields import MAX_SECONDS, NAME_PATTERN
from controlplane.spec.limits import JobLimits, LimitedResources, Tokens, written
from controlplane.spec.parsing import parse_part
from controlplane.spec.quantities import parse_bytes

if apps.is_installed("unfold"):
    from unfold.widgets import (
        UnfoldAdminCheckboxSelectMultipleWidget as Checkboxes,
    )
    from unfold.widgets import (
        UnfoldAdminSelect2MultipleWidget as SelectMany,
    )
    from unfold.widgets import (
        UnfoldAdminSelectWidget as Select,
    )
    from unfold.widgets import (
        UnfoldAdminTextareaWidget as Textarea,
    )
    from unfold.widgets import (
        UnfoldAdminTextInputWidget as TextInput,
    )
else:
    from django.forms import CheckboxSelectMultiple as Checkboxes
    from django.forms import Select, Textarea, TextInput
    from django.forms import SelectMultiple as SelectMany


_WRITABLE = "writable"

# Python's `$` would also match before a line break at the end.
check_name = RegexValidator(
    rf"\A{NAME_PATTERN}\Z",
    "Use lower-case letters, digits, and (not first) . _ -; at most 63 characters.",
)
"""Validator of the names of projects, domains and secrets."""

MAX_REASON_CHARS = 1_000


class RowsField(forms.ModelMultipleChoiceField):
    """Any number of rows, which the page can search by name."""

    widget = SelectMany

    def __init__(self, queryset: QuerySet[Any], **options: Any) -> None:
        super().__init__(queryset, required=False, **options)


class AmountsField(forms.CharField):
    """Amounts, one per line: `cpu: 4`, `memory: 64Gi`, `licence: 2`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(required=False, widget=Textarea(attrs={"rows": 4}), **options)

    def prepare_value(self, value: Any) -> Any:
        """Return the amounts of a row as lines."""
        if not isinstance(value, Mapping):
            return value
        return "\n".join(f"{name}: {amount}" for name, amount in written(value).items())

    def clean(self, value: Any) -> dict[str, Any]:
        """Return the amounts in the units of placement. Raise ValidationError."""
        text = super().clean(value)
        try:
            return self._amounts(read_document(text, "yaml") if text else {})
        except UnreadableDocument as error:
            raise ValidationError(str(error)) from None
        except InvalidSpec as error:
            raise ValidationError([str(fault) for fault in error.faults]) from None

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Return whether the amounts differ."""
        return bool(self.prepare_value(initial or {}) != (data or "").replace("\r\n", "\n").strip())

    def _amounts(self, document: Any) -> dict[str, Any]:
        raise NotImplementedError


class ResourcesField(AmountsField):
    """The resources that a quota limits."""

    def _amounts(self, document: Any) -> dict[str, int]:
        return parse_part(LimitedResources, document).amounts()


class TokensField(AmountsField):
    """The tokens of a pool."""

    def _amounts(self, document: Any) -> dict[str, int]:
        return parse_part(Tokens, document).root


class JobLimitsField(AmountsField):
    """The limits of a pool for the values of its jobs."""

    def _amounts(self, document: Any) -> dict[str, Any]:
        return parse_part(JobLimits, document).model_dump(exclude_unset=True)


class BytesField(forms.CharField):
    """A number of bytes: `5368709120` or `5Gi`; empty: none."""

    def __init__(self, **options: Any) -> None:
        super().__init__(required=False, widget=TextInput(), **options)

    def clean(self, value: Any) -> int | None:
        """Return the bytes. Raise ValidationError."""
        text = super().clean(value)
        try:
            return parse_bytes(text) if text else None
        except ValueError as error:
            raise ValidationError(str(error)) from None

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Return whether the text differs from the number of the row."""
        return ("" if initial is None else str(initial)) != (data or "").strip()


class AllowedMountsField(forms.CharField):
    """Host paths that tasks may mount, one per line: `/srv/models`, `/srv/scratch: writable`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(required=False, widget=Textarea(attrs={"rows": 3}), **options)

    def prepare_value(self, value: Any) -> Any:
        """Return the list of a row as lines."""
        if not isinstance(value, list):
            return value
        return "\n".join(
            item["path"] + ("" if item.get("read_only", True) else f": {_WRITABLE}")
            for item in value
        )

    def clean(self, value: Any) -> list[dict[str, Any]]:
        """Return the list for the row; the model checks the paths. Raise ValidationError."""
        found = []
        for line in filter(str.strip, super().clean(value).splitlines()):
            path, colon, word = (part.strip() for part in line.partition(":"))
            if colon and word != _WRITABLE:
                raise ValidationError(f"{line.strip()}: expected PATH or PATH: {_WRITABLE}")
            found.append({"path": path, "read_only": not colon})
        return found

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Return whether the list differs."""
        return bool(self.prepare_value(initial or []) != (data or "").replace("\r\n", "\n").strip())


class PluginField(forms.ChoiceField):
    """A choice of one plugin of a kind."""

    def __init__(self, kind: plugins.Kind, **options: Any) -> None:
        super().__init__(choices=lambda: _choices(kind), widget=Select(), **options)


class PluginsField(forms.MultipleChoiceField):
    """A choice of several plugins of a kind."""

    def __init__(self, kind: plugins.Kind, **options: Any) -> None:
        super().__init__(
            choices=lambda: _choices(kind), widget=Checkboxes(), required=False, **options
        )


def _choices(kind: plugins.Kind) -> list[tuple[str, str]]:
    return [(name, name) for name in plugins.names_of(kind)]


def read_reason(request: HttpRequest) -> str:
    """Return the reason that the user entered in a form, as it can be stored."""
    return clean_text(request.POST.get("reason", "").strip(), MAX_REASON_CHARS)


def read_deadline(request: HttpRequest) -> float | None:
    """Return the seconds until the deadline of a form, which has minutes; None: no deadline.

    Raise InvalidSpec.
    """
    text = request.POST.get("minutes", f"{DRAIN_SECONDS / 60}").strip()
    if not text:
        return None
    try:
        seconds = float(text) * 60
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= MAX_SECONDS:
        most = MAX_SECONDS // 60
        raise InvalidSpec([Fault("minutes", f"must be a number from 0 to {most}, or empty")])
    return seconds
