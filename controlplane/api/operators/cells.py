"""Endpoints of cells: list, show, and the operators' actions."""

from collections.abc import Callable
from functools import partial

from django.http import HttpResponse
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request

from controlplane import clock
from controlplane.api import openapi
from controlplane.api.base import ApiView, MayOperate
from controlplane.api.pages import PAGING, PageRequest
from controlplane.api.requests import Parameters, read_part
from controlplane.api.responses import answer
from controlplane.api.schemas import DrainRequest, EmptyRequest
from controlplane.commands.cells.operate import (
    cordon_cell,
    drain_cell,
    uncordon_cell,
    unquarantine_cell,
)
from controlplane.queries.views import cells

_PROBLEMS = (400, 403, 404, 409, 413, 415, 422)


class Cells(ApiView):
    """All cells."""

    @openapi.describe(
        "list_cells",
        answers={200: openapi.page_of("Cell")},
        parameters=openapi.PAGING,
        problems=(400,),
    )
    def get(self, request: Request) -> HttpResponse:
        """List cells by name, with what is free on each."""
        page = PageRequest(request, Parameters(request, *PAGING))
        found = cells.list_cells(after=page.name, limit=page.limit + 1)
        return page.answer(found, lambda cell: cell["name"])


class CellDetail(ApiView):
    """One cell."""

    @openapi.describe("get_cell", answers={200: openapi.ref("Cell")}, problems=(404,))
    def get(self, request: Request, name: str) -> HttpResponse:
        """Show one cell."""
        return answer(cells.get_cell(name))


class _CellOrder(ApiView):
    permission_classes = (IsAuthenticated, MayOperate)

    def obey(self, request: Request, name: str, order: Callable[..., None]) -> HttpResponse:
        """Do `order` with the cell and answer what it is now."""
        read_part(request, EmptyRequest)
        order(name=name, actor=request.user.get_username())
        return answer(cells.get_cell(name))


class CellCordon(_CellOrder):
    """Keep new work from a cell."""

    @openapi.describe(
        "cordon_cell", body="EmptyRequest", answers={200: openapi.ref("Cell")}, problems=_PROBLEMS
    )
    def post(self, request: Request, name: str) -> HttpResponse:
        """Give a cell no new work; running attempts continue (operators)."""
        return self.obey(request, name, partial(cordon_cell, now=clock.now()))


class CellUncordon(_CellOrder):
    """Let a cell work again."""

    @openapi.describe(
        "uncordon_cell", body="EmptyRequest", answers={200: openapi.ref("Cell")}, problems=_PROBLEMS
    )
    def post(self, request: Request, name: str) -> HttpResponse:
        """Give a cell work again (operators)."""
        return self.obey(request, name, partial(uncordon_cell, now=clock.now()))


class CellDrain(_CellOrder):
    """Have the work of a cell leave it."""

    @openapi.describe(
        "drain_cell", body="DrainRequest", answers={200: openapi.ref("Cell")}, problems=_PROBLEMS
    )
    def post(self, request: Request, name: str) -> HttpResponse:
        """Give a cell no new work, and have its work leave it (operators)."""
        wish = read_part(request, DrainRequest)
        drain_cell(
            name=name,
            actor=request.user.get_username(),
            now=clock.now(),
            deadline_seconds=wish.deadline_seconds,
        )
        return answer(cells.get_cell(name))


class CellUnquarantine(_CellOrder):
    """Trust a cell again."""

    @openapi.describe(
        "unquarantine_cell",
        body="EmptyRequest",
        answers={200: openapi.ref("Cell")},
        problems=_PROBLEMS,
    )
    def post(self, request: Request, name: str) -> HttpResponse:
        """Lift the quarantine of a cell (operators)."""
        return self.obey(request, name, partial(unquarantine_cell, now=clock.now()))
