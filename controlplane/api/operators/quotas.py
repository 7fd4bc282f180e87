"""Endpoints of quotas: users read those that apply to them; operators set limits."""

from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.base import ApiView, ReadOrOperate
from controlplane.api.openapi import Operation, parameter
from controlplane.api.operators.requests import QuotaRequest
from controlplane.api.operators.serializers import QuotaSerializer
from controlplane.api.requests import check_named, read_part
from controlplane.commands.tenancy.quotas import put_quota
from controlplane.domain.errors import NotFound
from controlplane.domain.scopes import ScopeKind
from controlplane.queries.views import quotas

_KINDS = tuple(kind.value for kind in ScopeKind)


class Quotas(ApiView):
    """Quotas of users, projects and domains."""

    permission_classes = (IsAuthenticated, ReadOrOperate)
    serializer_class = QuotaSerializer

    @Operation(
        page=True,
        parameters=[parameter("kind", "Only quotas of this kind: user, project or domain.")],
    )
    def list(self, request: Request) -> Response:
        """List the quotas that apply to the caller with usage, newest first; auditors: all."""
        page = self.begin_page()
        kind = self.query.choice("kind", _KINDS)
        found, page.following = quotas.list_quotas(
            kind=None if kind is None else ScopeKind(kind),
            reader=self.access,
            before=page.number,
            limit=page.limit,
        )
        return page.get_paginated_response(self.represent(found))

    def retrieve(self, request: Request, kind: str, name: str) -> Response:
        """Show limits and usage of a user, project or domain; null means no limit.

        A project is `domain/name`, with a slash or %2F; `name` alone is in the domain `default`.
        """
        found = quotas.find_scope(ScopeKind(kind), name)
        if not quotas.is_readable(found.scope, self.access):
            raise NotFound(f"there is no {kind} {name}")
        return self.answer(quotas.get_quota(ScopeKind(kind), name))

    @Operation(body=QuotaRequest)
    def update(self, request: Request, kind: str, name: str) -> Response:
        """Set the limits of a user, project or domain over all pools (operators).

        Omitted fields keep their values; null, or omitting a resource, removes a limit.
        """
        wanted = read_part(request, QuotaRequest)
        found = quotas.find_scope(ScopeKind(kind), name)
        check_named("kind", wanted.kind, kind)
        check_named("name", wanted.name, found.name, name)
        put_quota(scope=found.scope, changes=wanted.changes())
        return self.answer(quotas.get_quota(ScopeKind(kind), name))
