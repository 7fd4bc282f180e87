"""Pools: the one thing that is edited here."""

from typing import ClassVar

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest

from controlplane.admin.base import StyledAdmin
from controlplane.models import Pool


@admin.register(Pool)
class PoolAdmin(StyledAdmin):
    """Policies of pools. A pool keeps its name, which jobs and cells say, and is never deleted."""

    list_display = (
        "name",
        "pending_timeout_seconds",
        "pull_timeout_seconds",
        "create_timeout_seconds",
    )
    search_fields = ("name",)
    fieldsets: ClassVar = (
        (None, {"fields": ("name",)}),
        (
            "Time limits, in seconds",
            {
                "fields": (
                    "pending_timeout_seconds",
                    "pull_timeout_seconds",
                    "create_timeout_seconds",
                )
            },
        ),
    )

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        """The name, once it is given."""
        return ["name"] if obj is not None else []

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Never: its jobs and cells would be without a policy."""
        return False
