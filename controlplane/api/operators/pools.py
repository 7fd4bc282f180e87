"""Endpoints of pools: every user reads them; operators create and change them."""

from django.http import HttpResponse
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request

from controlplane import clock
from controlplane.api import openapi
from controlplane.api.base import ApiView, MayOperate, ReadOrOperate
from controlplane.api.pages import PAGING, PageRequest
from controlplane.api.requests import Parameters, check_named, read_part
from controlplane.api.responses import answer
from controlplane.api.schemas import EmptyRequest, PoolRequest
from controlplane.commands.tenancy.pools import confirm_loss, put_pool
from controlplane.queries.views import pools


class Pools(ApiView):
    """All pools."""

    @openapi.describe(
        "list_pools",
        answers={200: openapi.page_of("Pool")},
        parameters=openapi.PAGING,
        problems=(400,),
    )
    def get(self, request: Request) -> HttpResponse:
        """List pools by name."""
        page = PageRequest(request, Parameters(request, *PAGING))
        found = pools.list_pools(after=page.name, limit=page.limit + 1)
        return page.answer(found, lambda pool: pool["name"])


class PoolDetail(ApiView):
    """One pool."""

    permission_classes = (IsAuthenticated, ReadOrOperate)

    @openapi.describe("get_pool", answers={200: openapi.ref("Pool")}, problems=(404,))
    def get(self, request: Request, name: str) -> HttpResponse:
        """Show one pool."""
        return answer(pools.get_pool(name))

    @openapi.describe(
        "put_pool",
        body="PoolRequest",
        answers={200: openapi.ref("Pool"), 201: openapi.ref("Pool")},
        problems=(400, 403, 404, 413, 415, 422),
    )
    def put(self, request: Request, name: str) -> HttpResponse:
        """Make a pool, or change one (operators); it is in force from the next pass on.

        What is left out stays as it is; in a new pool it has its default.
        """
        wanted = read_part(request, PoolRequest)
        check_named("name", wanted.name, name)
        is_new = put_pool(name=name, changes=wanted.changes())
        return answer(pools.get_pool(name), status=201 if is_new else 200)


class PoolConfirmLoss(ApiView):
    """Give up the cells whose loss is held back."""

    permission_classes = (IsAuthenticated, MayOperate)

    @openapi.describe(
        "confirm_loss",
        body="EmptyRequest",
        answers={200: openapi.ref("Pool")},
        problems=(400, 403, 404, 409, 413, 415, 422),
    )
    def post(self, request: Request, name: str) -> HttpResponse:
        """Give up the silent cells of a pool whose loss is held back (operators)."""
        read_part(request, EmptyRequest)
        confirm_loss(name=name, actor=request.user.get_username(), now=clock.now())
        return answer(pools.get_pool(name))
