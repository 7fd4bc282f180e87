"""Endpoints of cells: list, show, and the operators' actions."""

from collections.abc import Callable

from rest_framework.decorators import action
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import clock
from controlplane.api.base import ApiView, ReadOrOperate
from controlplane.api.openapi import Operation
from controlplane.api.operators.requests import CellOrderRequest, CellRequest, DrainRequest
from controlplane.api.operators.serializers import CellSerializer
from controlplane.api.requests import check_named, read_part
from controlplane.commands.cells import operate
from controlplane.commands.cells.enrolment import change_enrolment
from controlplane.queries.views import cells


class Cells(ApiView):
    """Cells: any user may read them, operators may change them."""

    permission_classes = (IsAuthenticated, ReadOrOperate)
    serializer_class = CellSerializer
    lookup_field = "name"
    lookup_value_converter = "name"

    @Operation(page=True)
    def list(self, request: Request) -> Response:
        """List cells by name, with their free capacity."""
        return self.answer_page(cells.list_cells, "name", "after")

    def retrieve(self, request: Request, name: str) -> Response:
        """Show one cell."""
        reads_everything = self.access.readable is None
        return self.answer(cells.get_cell(name, with_failure=reads_everything))

    @Operation(body=CellRequest)
    def update(self, request: Request, name: str) -> Response:
        """Change the pool, the labels below node/ and the ceiling of a cell (operators).

        Omitted fields keep their values. What the cell reported last is compared with the new ones.
        """
        wanted = read_part(request, CellRequest)
        check_named("name", wanted.name, name)
        change = wanted.change()
        change_enrolment(name=name, change=change, actor=self.actor, now=clock.now())
        return self.answer(cells.get_cell(name))

    @Operation(body=CellOrderRequest, problems=(409,))
    @action(detail=True, methods=["post"], url_path="cordon")
    def cordon_cell(self, request: Request, name: str) -> Response:
        """Stop placement on a cell; running attempts continue (operators)."""
        return self._operate(name, operate.cordon_cell)

    @Operation(body=CellOrderRequest, problems=(409,))
    @action(detail=True, methods=["post"], url_path="uncordon")
    def uncordon_cell(self, request: Request, name: str) -> Response:
        """Resume placement on a cell (operators)."""
        return self._operate(name, operate.uncordon_cell)

    @Operation(body=DrainRequest, problems=(409,))
    @action(detail=True, methods=["post"], url_path="drain")
    def drain_cell(self, request: Request, name: str) -> Response:
        """Stop placement on a cell, and at a deadline the attempts that still run (operators)."""
        wanted = read_part(request, DrainRequest)
        operate.drain_cell(
            name=name,
            actor=self.actor,
            reason=wanted.reason,
            now=clock.now(),
            deadline_seconds=wanted.deadline_seconds,
        )
        return self.answer(cells.get_cell(name))

    @Operation(body=CellOrderRequest, problems=(409,))
    @action(detail=True, methods=["post"], url_path="unquarantine")
    def unquarantine_cell(self, request: Request, name: str) -> Response:
        """Lift the quarantine of a cell (operators)."""
        return self._operate(name, operate.unquarantine_cell)

    def _operate(self, name: str, command: Callable[..., None]) -> Response:
        reason = read_part(self.request, CellOrderRequest).reason
        command(name=name, actor=self.actor, reason=reason, now=clock.now())
        return self.answer(cells.get_cell(name))
