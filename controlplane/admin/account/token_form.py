"""The form of a new API token of the own account."""

from collections.abc import Sequence
from typing import Any, cast

from django import forms
from django.core.validators import MaxValueValidator, RegexValidator

from controlplane.domain.roles import (
    DEFAULT_DAYS,
    MAX_TOKEN_NAME,
    MAX_TOKEN_PROJECTS,
    TOKEN_NAME,
    Role,
    max_days,
)

MORE_PROJECTS = (
    f" The list has the first {MAX_TOKEN_PROJECTS}; for others use cellrun token create --project."
)


class OwnTokenForm(forms.Form):
    """A token to create. The form offers what the command permits, which decides."""

    name = forms.CharField(
        max_length=MAX_TOKEN_NAME,
        validators=[RegexValidator(TOKEN_NAME, "Control characters are not permitted.")],
        help_text="Identifies the token in lists and in the audit log.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "autofocus": True}),
    )
    role = forms.ChoiceField(
        initial=Role.SUBMITTER.value,
        help_text="The most that the token permits: your roles on projects limit it too.",
    )
    days = forms.IntegerField(label="Expires in days", initial=DEFAULT_DAYS, min_value=1)
    projects = forms.TypedMultipleChoiceField(
        label="Limited to projects",
        coerce=int,
        required=False,
        widget=forms.CheckboxSelectMultiple(),
        help_text="None selected: all your projects, also later ones.",
    )

    def __init__(
        self, *args: Any, giver: Role, readable: Sequence[tuple[int, str]], **kwargs: Any
    ) -> None:
        """Offer roles up to that of the `giver`, and the `readable` projects."""
        super().__init__(*args, **kwargs)
        fields, most = cast(dict[str, Any], self.fields), max_days(giver)
        fields["role"].choices = [(role.value, role.value) for role in Role if giver.includes(role)]
        fields["days"].validators.append(MaxValueValidator(most))
        fields["days"].widget.attrs["max"] = most
        fields["days"].help_text = f"At most {most}."
        fields["projects"].choices = readable[:MAX_TOKEN_PROJECTS]
        if len(readable) > MAX_TOKEN_PROJECTS:
            fields["projects"].help_text += MORE_PROJECTS
        if not readable:
            del fields["projects"]
