"""The form with what operators fix of a cell."""

from collections.abc import Mapping
from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from controlplane.admin.fields import ResourcesField, Select, Textarea, TextInput
from controlplane.models import Cell, Pool
from controlplane.spec import InvalidSpec
from controlplane.spec.parsing import parse_part
from controlplane.spec.placing import FixedTags, NodeLabels, split_tags


class LabelsField(forms.CharField):
    """Labels, one per line: `node/zone=a`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(required=False, widget=Textarea(attrs={"rows": 3}), **options)

    def prepare_value(self, value: Any) -> Any:
        """Return the labels of a row as lines."""
        if not isinstance(value, Mapping):
            return value
        return "\n".join(f"{name}={text}" for name, text in sorted(value.items()))

    def clean(self, value: Any) -> dict[str, str]:
        """Return the labels. Raise ValidationError."""
        labels = {}
        for line in filter(str.strip, super().clean(value).splitlines()):
            name, sign, text = line.strip().partition("=")
            if not sign:
                raise ValidationError(f"{line.strip()}: expected NAME=VALUE")
            labels[name.strip()] = text.strip()
        try:
            return parse_part(NodeLabels, labels).root
        except InvalidSpec as error:
            raise ValidationError([str(fault) for fault in error.faults]) from None


class TagsField(forms.CharField):
    """Placement tags, separated by commas: `quiet, ssd?`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(required=False, widget=TextInput(), **options)

    def prepare_value(self, value: Any) -> Any:
        """Return the tags of a row as text."""
        return value if isinstance(value, str | None) else ", ".join(value)

    def clean(self, value: Any) -> list[str]:
        """Return the tags. Raise ValidationError."""
        try:
            return parse_part(FixedTags, split_tags(super().clean(value))).root
        except InvalidSpec as error:
            raise ValidationError([str(fault) for fault in error.faults]) from None


class EnrolmentForm(forms.Form):
    """The pool, the protected labels, the ceiling and the tags of a cell."""

    pool = forms.ChoiceField(choices=lambda: _pool_choices(), widget=Select())
    node_labels = LabelsField(
        label="Labels below node/", help_text="One per line: node/zone=a. Only operators set them."
    )
    max_capacity = ResourcesField(
        label="Maximum capacity",
        help_text="One per line: cpu: 8, memory: 64Gi. Resources without a line are not limited.",
    )
    fixed_tags = TagsField(
        label="Tags",
        help_text="With commas: quiet, ssd? (with ?: optional). Only *: those that the cell"
        " reports. Empty: none.",
    )


def initial_enrolment(cell: Cell) -> dict[str, Any]:
    """Return the present values of a cell."""
    return {
        "pool": cell.pool.name,
        "node_labels": cell.node_labels,
        "max_capacity": cell.max_capacity,
        "fixed_tags": cell.fixed_tags,
    }


def _pool_choices() -> list[tuple[str, str]]:
    names = Pool.objects.order_by("name").values_list("name", flat=True)
    return [(name, name) for name in names]
