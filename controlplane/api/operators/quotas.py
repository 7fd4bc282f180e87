"""Endpoints of quotas: every user reads limits and usage; operators set limits."""

from django.http import HttpResponse
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request

from controlplane.api import openapi
from controlplane.api.base import ApiView, ReadOrOperate
from controlplane.api.pages import PAGING, PageRequest
from controlplane.api.requests import Parameters, check_named, read_part
from controlplane.api.responses import answer
from controlplane.api.schemas import QuotaRequest
from controlplane.commands.tenancy.quotas import put_quota
from controlplane.domain.scopes import ScopeKind
from controlplane.queries.views import quotas

_KINDS = tuple(kind.value for kind in ScopeKind)


class Quotas(ApiView):
    """All quotas."""

    @openapi.describe(
        "list_quotas",
        answers={200: openapi.page_of("Quota")},
        parameters=[openapi.parameter("kind", "user, project or domain."), *openapi.PAGING],
        problems=(400,),
    )
    def get(self, request: Request) -> HttpResponse:
        """List the users, projects and domains that have a quota, with usage; newest first."""
        parameters = Parameters(request, "kind", *PAGING)
        page = PageRequest(request, parameters)
        kind = parameters.choice("kind", _KINDS)
        found, rest = quotas.list_quotas(
            kind=None if kind is None else ScopeKind(kind),
            before=page.number,
            limit=page.limit,
        )
        return page.answer_part(found, rest)


class QuotaDetail(ApiView):
    """The quota of one user, project or domain."""

    permission_classes = (IsAuthenticated, ReadOrOperate)

    @openapi.describe("get_quota", answers={200: openapi.ref("Quota")}, problems=(404,))
    def get(self, request: Request, kind: str, name: str) -> HttpResponse:
        """Show limits and usage of a user, project or domain; null is no limit.

        A project is `domain/name`, the slash as it is or as %2F; without one it is in `default`.
        """
        return answer(quotas.get_quota(ScopeKind(kind), name))

    @openapi.describe(
        "put_quota",
        body="QuotaRequest",
        answers={200: openapi.ref("Quota")},
        problems=(400, 403, 404, 413, 415, 422),
    )
    def put(self, request: Request, kind: str, name: str) -> HttpResponse:
        """Limit what a user, project or domain may have at once (operators).

        What is left out stays as it is; null, and a resource that is not named, is no limit.
        """
        wanted = read_part(request, QuotaRequest)
        found = quotas.find_scope(ScopeKind(kind), name)
        check_named("kind", wanted.kind, kind)
        check_named("name", wanted.name, found.name, name)
        put_quota(scope=found.scope, changes=wanted.changes())
        return answer(quotas.get_quota(ScopeKind(kind), name))
