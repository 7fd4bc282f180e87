"""Endpoints of the result cache: list, show and evict entries."""

from functools import partial
from typing import cast

from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import clock
from controlplane.api.base import ApiView
from controlplane.api.openapi import ONLY_PROJECT, Operation, parameter
from controlplane.api.walls import check_change, check_project, select_project
from controlplane.api.work import cache_schemas
from controlplane.commands.cache.operate import evict_entry
from controlplane.queries.views import cache

_WHERE = [
    parameter("domain", "Domain of the project; default `default`."),
    parameter("project", f"Project whose tasks use the entries; default `default`. {ONLY_PROJECT}"),
]
_SCOPE = parameter("scope", "project (default), or domain: of entries that the domain shares.")


class CacheEntries(ApiView):
    """Entries of the result cache that are not evicted."""

    document = cache_schemas.CacheEntry
    lookup_field = "key"
    lookup_value_converter = "cache_key"

    @Operation(
        id="list_cache_entries",
        page=True,
        parameters=[
            *_WHERE,
            parameter("scope", "Only entries of the scope project or domain; default both."),
            parameter("key", "The whole key of an entry."),
        ],
        problems=(404, 422),
    )
    def list(self, request: Request) -> Response:
        """List the entries that tasks of a project can use, newest first."""
        scope, key = self._scope(), self.query.text("key")
        found = partial(cache.list_entries, self._user(), scope=scope, key=key)
        return self.answer_page(found, "id")

    @Operation(id="get_cache_entry", parameters=[*_WHERE, _SCOPE], problems=(422,))
    def retrieve(self, request: Request, key: str) -> Response:
        """Show an entry with its result and outputs."""
        return self.answer(cache.get_entry(self._user(), self._scope() or "project", key))

    @Operation(id="evict_cache_entry", parameters=[*_WHERE, _SCOPE], problems=(422,))
    def destroy(self, request: Request, key: str) -> Response:
        """Evict an entry (the submitter of the task that populated it, or a manager).

        Tasks that already have its result keep it.
        """
        found = cache.find_entry_place(self._user(), self._scope() or "project", key)
        check_change(self.access, found.place, "evict")
        evict_entry(entry_id=found.entry_id, actor=self.actor, now=clock.now())
        return Response(status=204)

    def _user(self) -> cache.CacheUser:
        domain, project = select_project(
            self.access, self.query.text("domain"), self.query.text("project")
        )
        place = check_project(self.access, domain, project)
        return cache.CacheUser(
            place.project_id, place.domain_id, f"{domain}/{project}", self.access.readable
        )

    def _scope(self) -> cache.Scope | None:
        return cast(cache.Scope | None, self.query.choice("scope", cache.SCOPES))
