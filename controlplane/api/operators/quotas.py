"""Endpoints of quotas: users read those that apply to them; operators set limits."""

from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.base import ApiView, ReadOrOperate
from controlplane.api.openapi import Operation, parameter
from controlplane.api.operators.requests import QuotaRequest
from controlplane.api.operators.serializers import QuotaSerializer
from controlplane.api.requests import check_named, read_part
from controlplane.commands.tenancy.quotas import (
    delete_default_quota,
    delete_quota,
    put_default_quota,
    put_quota,
)
from controlplane.domain.errors import NotFound
from controlplane.domain.scopes import ScopeKind
from controlplane.queries.views import quotas

_KINDS = (*(kind.value for kind in ScopeKind), quotas.DEFAULT)


class Quotas(ApiView):
    """Quotas of users, projects and domains, and default quotas."""

    permission_classes = (IsAuthenticated, ReadOrOperate)
    serializer_class = QuotaSerializer

    @Operation(
        page=True,
        parameters=[
            parameter("kind", "Only quotas of this kind: user, project, domain or default.")
        ],
    )
    def list(self, request: Request) -> Response:
        """List the quotas that apply to the caller with usage, newest first; auditors: all."""
        page = self.begin_page()
        kind = self.query.choice("kind", _KINDS)
        found, page.following = quotas.list_quotas(
            kind=_read_kind(kind),
            reader=self.access,
            before=page.number,
            limit=page.limit,
        )
        return page.get_paginated_response(self.represent(found))

    def retrieve(self, request: Request, kind: str, name: str) -> Response:
        """Show limits and usage of a user, project or domain; null means no limit.

        A project is `domain/name`, with a slash or %2F; `name` alone is in the domain `default`.
        The kind `default` with the name `user`, `project` or `domain` shows the limits of all of
        them that have no quota of their own.
        """
        if kind == quotas.DEFAULT:
            return self.answer(quotas.get_default_quota(quotas.find_kind(name)))
        found = quotas.find_scope(ScopeKind(kind), name)
        if not quotas.is_readable(found.scope, self.access):
            raise NotFound(f"there is no {kind} {name}")
        return self.answer(quotas.get_quota(ScopeKind(kind), name))

    @Operation(body=QuotaRequest)
    def update(self, request: Request, kind: str, name: str) -> Response:
        """Set the limits of a user, project or domain over all pools (operators).

        Omitted fields keep their values; null, or omitting a resource, removes a limit. The kind
        `default` sets the limits of all users, projects or domains without a quota of their own.
        """
        wanted = read_part(request, QuotaRequest)
        if kind == quotas.DEFAULT:
            default_for = quotas.find_kind(name)
            check_named("kind", wanted.kind, kind)
            check_named("name", wanted.name, name)
            put_default_quota(kind=default_for, changes=wanted.changes())
            return self.answer(quotas.get_default_quota(default_for))
        found = quotas.find_scope(ScopeKind(kind), name)
        check_named("kind", wanted.kind, kind)
        check_named("name", wanted.name, found.name, name)
        put_quota(scope=found.scope, changes=wanted.changes())
        return self.answer(quotas.get_quota(ScopeKind(kind), name))

    @Operation()
    def destroy(self, request: Request, kind: str, name: str) -> Response:
        """Delete a quota: the default quota of its kind applies again (operators).

        The kind `default` deletes a default quota: users, projects or domains without a quota of
        their own have no limits then.
        """
        if kind == quotas.DEFAULT:
            delete_default_quota(kind=quotas.find_kind(name))
        else:
            found = quotas.find_scope(ScopeKind(kind), name)
            delete_quota(scope=found.scope, name=found.name)
        return Response(status=204)


def _read_kind(kind: str | None) -> quotas.QuotaKind | None:
    if kind is None:
        return None
    return "default" if kind == quotas.DEFAULT else ScopeKind(kind)
