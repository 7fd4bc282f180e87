"""The base of the pages of addresses and rules: a page of facts, and forms that run commands."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.decorators import method_decorator
from django.views.decorators.debug import sensitive_post_parameters

from controlplane.admin.base import ReadOnlyAdmin, delete_each
from controlplane.admin.tenancy.members import ChangedByOperators, is_operator
from controlplane.domain.errors import CellrunError
from controlplane.spec import InvalidSpec


class ConfiguredAdmin(ChangedByOperators, ReadOnlyAdmin):
    """Named rows, which operators add, change and delete. Every viewer reads the pages."""

    ordering = ("name",)

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Return whether the user is an operator."""
        return is_operator(request)

    def get_urls(self) -> list[Any]:
        """Return the URLs with that of the form of a present row."""
        view, name = self.admin_site.admin_view(self.edit_view), self._url_name("edit")
        return [path("<path:object_id>/edit/", view, name=name), *super().get_urls()]

    def edit_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Return the form of a present row, or change it."""
        if not is_operator(request):
            raise PermissionDenied
        return self.changeform_view(request, object_id)

    @method_decorator(sensitive_post_parameters("url"))
    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Return the form, or save it; report why a command refuses that."""
        try:
            response: HttpResponse = super().changeform_view(request, *args, **kwargs)
        except (CellrunError, InvalidSpec) as fault:  # such as: there are too many
            self.message_user(request, str(fault), messages.ERROR)
            return HttpResponseRedirect(self.list_url())
        return response

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        """Return the name of a present row, which cannot be changed."""
        return [] if obj is None else ["name"]

    def page_links(self, request: HttpRequest, obj: Any) -> list[tuple[str, str]]:
        """Return the forms that change and delete the row."""
        if not is_operator(request):
            return []
        return [
            (text, reverse(f"admin:{self._url_name(name)}", args=[obj.pk]))
            for text, name in (("Change", "edit"), ("Delete", "delete"))
        ]

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Return the rows without those that depend on them, which may be many."""
        named = [str(obj) for obj in objs]
        return named, {str(self.opts.verbose_name_plural): len(named)}, set(), []

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Delete each row with the command that the API uses."""
        delete_each(queryset, lambda row: self.delete_model(request, row))

    def response_post_save_add(self, request: HttpRequest, obj: Any) -> HttpResponse:
        """Return to the page of the row."""
        return HttpResponseRedirect(reverse(f"admin:{self._url_name('change')}", args=[obj.pk]))

    def response_post_save_change(self, request: HttpRequest, obj: Any) -> HttpResponse:
        """Return to the page of the row."""
        return self.response_post_save_add(request, obj)

    def _url_name(self, view: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{view}"
