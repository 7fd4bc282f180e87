"""Endpoints of pools: every user reads them; operators create and change them."""

from functools import partial

from rest_framework.decorators import action
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import clock
from controlplane.api.base import ApiView, ReadOrOperate
from controlplane.api.openapi import Operation
from controlplane.api.operators.requests import PoolRequest
from controlplane.api.operators.serializers import PoolSerializer
from controlplane.api.requests import check_named, read_part
from controlplane.api.schemas import EmptyRequest, QueueEntry
from controlplane.commands.tenancy import pools as commands
from controlplane.queries.pages.queue import find_pool, list_queue
from controlplane.queries.views import pools


class Pools(ApiView):
    """Pools."""

    permission_classes = (IsAuthenticated, ReadOrOperate)
    serializer_class = PoolSerializer
    lookup_field = "name"
    lookup_value_converter = "name"

    @Operation(page=True)
    def list(self, request: Request) -> Response:
        """List pools by name."""
        return self.answer_page(pools.list_pools, "name", "after")

    def retrieve(self, request: Request, name: str) -> Response:
        """Show one pool."""
        return self.answer(pools.get_pool(name))

    @Operation(body=PoolRequest, codes=(200, 201))
    def update(self, request: Request, name: str) -> Response:
        """Create or change a pool (operators); the next placement pass applies the change.

        Omitted fields keep their values; in a new pool they have their defaults.
        """
        wanted = read_part(request, PoolRequest)
        check_named("name", wanted.name, name)
        is_new = commands.put_pool(name=name, changes=wanted.changes())
        return self.answer(pools.get_pool(name), status=201 if is_new else 200)

    @Operation(page=True, answer=QueueEntry)
    @action(detail=True, url_path="queue")
    def list_queue(self, request: Request, name: str) -> Response:
        """List the groups that may start, in the order in which the next placement pass tries them.

        The first 2,000 groups of the pool have a position; those of projects that the caller may
        not read are left out. The order is that of a pass in which every group fits.
        """
        pool = find_pool(name)
        found = partial(list_queue, pool, readable=self.access.readable, now=clock.now())
        page = self.begin_page()
        return page.get_paginated_response(page.take(found, "position", "after"))

    @Operation(body=EmptyRequest, problems=(409,))
    @action(detail=True, methods=["post"], url_path="confirm-loss")
    def confirm_loss(self, request: Request, name: str) -> Response:
        """Confirm the suppressed loss of a pool's silent cells (operators)."""
        read_part(request, EmptyRequest)
        commands.confirm_loss(name=name, actor=self.actor, now=clock.now())
        return self.answer(pools.get_pool(name))
