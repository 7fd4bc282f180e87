"""Endpoints of bulk operations: preview, start, list, show, stop."""

from functools import partial

from rest_framework.decorators import action
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import clock
from controlplane.api import charges
from controlplane.api.base import ApiView, caller_of, credential_of
from controlplane.api.openapi import Operation
from controlplane.api.requests import read_part
from controlplane.api.schemas import EmptyRequest
from controlplane.api.work import bulk_schemas as schemas
from controlplane.commands.bulk import BulkActor, start_bulk, stop_bulk
from controlplane.contract.states import TaskState
from controlplane.domain.jobs.bulk import BulkAction, BulkFilter, check_bulk
from controlplane.queries.jobs import bulk


class BulkOperations(ApiView):
    """Actions on all jobs that a filter selects and that the caller may change."""

    document = schemas.BulkOperation
    lookup_url_kwarg = "operation_id"
    lookup_value_converter = "id"

    @Operation(
        id="start_bulk_operation", body=schemas.BulkRequest, codes=(202,), problems=(404, 409)
    )
    def create(self, request: Request) -> Response:
        """Cancel, retry, delete, hold or release all matching jobs that the caller may change.

        Convergence processes the jobs that exist now, in pages, with the roles that the token has
        then. 409: no job matches, or 5 operations of the caller run already.
        """
        wanted = read_part(request, schemas.BulkRequest)
        # The most that the count reads: a start that is refused then has read them too.
        charges.charge_rows(request, bulk.MAX_COUNTED)
        by = BulkActor(caller_of(request), self.access, credential_of(request).token_id)
        operation_id = start_bulk(
            action=BulkAction(wanted.action),
            wanted=_read_filter(wanted.filter),
            reason=wanted.reason,
            by=by,
            now=clock.now(),
        )
        made = self.answer(self._get(operation_id), status=202)
        made["Location"] = request.build_absolute_uri(f"/api/v1/bulk/{operation_id}")
        return made

    @Operation(body=schemas.BulkPreviewRequest, answer=schemas.BulkCount, problems=(404,))
    def preview_bulk_operation(self, request: Request) -> Response:
        """Count the jobs that a bulk operation would process, and list the newest of them."""
        wanted = read_part(request, schemas.BulkPreviewRequest)
        chosen, found = BulkAction(wanted.action), _read_filter(wanted.filter)
        check_bulk(chosen, found, None)
        preview = bulk.preview_bulk(chosen, found, access=self.access)
        charges.charge_rows(request, preview.read)
        return self.answer(
            {
                "count": preview.count,
                "is_whole": preview.is_whole,
                "sample": preview.sample,
            }
        )

    @Operation(page=True)
    def list(self, request: Request) -> Response:
        """List own bulk operations, newest first; operators and auditors: all."""
        return self.answer_page(partial(bulk.list_operations, self.access, self._token_id), "id")

    def retrieve(self, request: Request, operation_id: int) -> Response:
        """Show a bulk operation with its progress."""
        return self.answer(self._get(operation_id))

    @Operation(body=EmptyRequest, problems=(409,))
    @action(detail=True, methods=["post"], url_path="stop")
    def stop_bulk_operation(self, request: Request, operation_id: int) -> Response:
        """Process no further job (its user, or an operator). 409: it has ended."""
        found = self._get(operation_id)
        read_part(request, EmptyRequest)
        if found["by"] != self.actor and not self.access.may_operate:
            raise PermissionDenied("only its user or an operator may stop it")
        stop_bulk(operation_id=operation_id, actor=self.actor, now=clock.now())
        return self.answer(self._get(operation_id))

    @property
    def _token_id(self) -> int | None:
        return credential_of(self.request).token_id

    def _get(self, operation_id: int) -> dict[str, object]:
        return bulk.get_operation(self.access, self._token_id, operation_id)


def _read_filter(wanted: schemas.BulkFilterRequest) -> BulkFilter:
    states = [TaskState[name] for name in wanted.states]
    return BulkFilter(wanted.project, wanted.pool, wanted.name, wanted.labels, states)
