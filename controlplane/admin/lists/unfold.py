"""Save work that lists of django-unfold repeat for each row, a quarter of their time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, time
from functools import cache, wraps
from operator import attrgetter
from typing import Any
from urllib.parse import quote as urlquote

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.contrib.admin.utils import quote
from django.core.exceptions import ObjectDoesNotExist
from django.db.models import DateField, Field, ForeignKey, ManyToOneRel, Model, TimeField
from django.urls import reverse
from django.utils.html import conditional_escape, escape
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from unfold.admin import ModelAdmin, checkbox
from unfold.templatetags import unfold_list
from unfold.utils import display_for_field, display_for_value

_VALUE = "VALUE-OF-THE-ROW"


class UnfoldListAdmin(ModelAdmin):
    """Unfold's admin, with one rendered checkbox that is filled for each row."""

    @admin.display(description=ModelAdmin.action_checkbox.short_description)
    def action_checkbox(self, obj: Model) -> SafeString:
        """Return the checkbox that selects a row for an action."""
        return mark_safe(_checkbox().replace(_VALUE, escape(str(obj.pk))))


@cache
def _checkbox() -> str:
    return str(checkbox.render(ACTION_CHECKBOX_NAME, _VALUE))


@dataclass(frozen=True, slots=True)
class _Column:
    """What the cells of a column share.

    `read`: the value of a row. `field`: of the model, if the value is one. `link_class`: of the
    link to the page of the row, empty without one. `opening`: the tag of a cell up to its content,
    and `nowrap_opening` that of a value that is not wrapped.
    """

    read: Callable[[Any], Any]
    field: "Field[Any, Any] | None"
    is_boolean: bool
    empty: str
    link_class: str
    opening: str
    nowrap_opening: str
    closing: str

    def cell(self, row: Model, address: str) -> str:
        """Return the cell of a row. `address`: of the row's page."""
        is_unwrapped = False
        try:
            value = self.read(row)
        except ObjectDoesNotExist:
            text = self.empty
        else:
            text, is_unwrapped = self._display(value)
        content = str(conditional_escape(text))
        if self.link_class:
            content = f'<a href="{address}" class="{self.link_class}" >{content}</a>'
        opening = self.nowrap_opening if is_unwrapped else self.opening
        return f"{opening}{content}{self.closing}"

    def _display(self, value: Any) -> tuple[Any, bool]:
        if self.field is None:
            is_unwrapped = isinstance(value, (date, time))
            return display_for_value(value, self.empty, self.is_boolean), is_unwrapped
        is_unwrapped = isinstance(self.field, (DateField, TimeField, ForeignKey))
        if isinstance(self.field.remote_field, ManyToOneRel):
            return (self.empty if value is None else value), is_unwrapped
        return display_for_field(value, self.field, self.empty), is_unwrapped


def _find_columns(cl: Any) -> list[_Column] | None:
    """Return the columns of a list; None if it has something that only Unfold renders."""
    model_admin, model = cl.model_admin, cl.model
    is_editable = getattr(cl, "formset", None) or getattr(model_admin, "ordering_field", None)
    if cl.is_popup or cl.to_field or is_editable:
        return None
    headers, found = unfold_list.result_headers(cl), list[_Column]()
    fields = {each.name: each for each in model._meta.concrete_fields if not each.auto_created}
    links = cl.list_display_links
    for place, name in enumerate(cl.list_display):
        field = fields.get(name)
        attribute = getattr(model_admin, name, None) if isinstance(name, str) else name
        if field is not None:  # also if the admin has an attribute of this name
            attribute = None
        elif name == "__str__" or not callable(attribute):
            return None
        if any(getattr(attribute, mark, False) for mark in ("label", "header", "dropdown")):
            return None
        is_box = name == "action_checkbox"
        field_class = f"field-{unfold_list._coerce_field_name(name, place)}"
        classes = (
            unfold_list.CHECKBOX_CLASSES if is_box else [field_class, *unfold_list.ROW_CLASSES]
        )
        is_link = links is not None and name in links
        is_first = is_link and not any(each.link_class for each in found)
        tag = "th" if is_first else "td"
        label = headers[place]["text"] if place or is_link else _("Select record")
        empty = getattr(attribute, "empty_value_display", model_admin.get_empty_value_display())
        opening, nowrap_opening = (
            f'<{tag} class="{" ".join(each)}" data-label="{conditional_escape(label)}">'
            for each in (classes, [*classes, "nowrap"])
        )
        found.append(
            _Column(
                attribute or attrgetter(name),
                field,
                getattr(attribute, "boolean", False),
                empty,
                " ".join(unfold_list.LINK_CLASSES) if is_link else "",
                opening,
                nowrap_opening,
                f"</{tag}>",
            )
        )
    return found


def _render_rows_by_columns() -> None:
    """Render the cells of a row with what is the same in each row computed once."""
    render = unfold_list.items_for_result

    @wraps(render)
    def items_for_result(cl: Any, result: Model, form: Any) -> Iterator[SafeString]:
        known = cl.__dict__
        if "columns_of_rows" not in known:
            cl.columns_of_rows = _find_columns(cl)
            cl.address_of_row = _find_address(cl) if cl.columns_of_rows else ""
        if form is not None or cl.columns_of_rows is None:
            yield from render(cl, result, form)
            return
        key = escape(urlquote(str(quote(result.pk))))
        address = cl.address_of_row.replace(_VALUE, key, 1)
        yield mark_safe("".join(each.cell(result, address) for each in cl.columns_of_rows))

    unfold_list.items_for_result = items_for_result


def _find_address(cl: Any) -> str:
    """Return the address of a row's page, with a placeholder for its key."""
    name = f"admin:{cl.opts.app_label}_{cl.opts.model_name}_change"
    address = reverse(name, args=(_VALUE,), current_app=cl.model_admin.admin_site.name)
    kept = {"preserved_filters": cl.preserved_filters, "opts": cl.opts}
    return str(escape(add_preserved_filters(kept, address)))


def _compute_headers_once() -> None:
    """Make a list compute its headers once.

    The Unfold for Python 3.11 (0.91) computes them for each row, the one for newer Pythons once.
    """
    compute = unfold_list.result_headers

    @wraps(compute)
    def result_headers(cl: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] | None = cl.__dict__.get("computed_headers")
        if found is None:
            found = cl.computed_headers = list(compute(cl))
        return found

    unfold_list.result_headers = result_headers


_compute_headers_once()
if hasattr(unfold_list, "ROW_CLASSES"):  # the Unfold for newer Pythons renders other cells
    _render_rows_by_columns()
