"""Endpoints of attempts: show, read output and artifacts, release; cells upload output here."""

import re
from typing import Any
from uuid import UUID

from django.http import HttpResponse, StreamingHttpResponse
from rest_framework.decorators import action
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import clock
from controlplane.api import schemas
from controlplane.api.agents.attempt_requests import check_cell
from controlplane.api.base import ApiView, MayOperate, SignedView
from controlplane.api.openapi import Operation, parameter
from controlplane.api.problems import BadQuery
from controlplane.api.requests import Parameters, read_bytes, read_part
from controlplane.api.stored_files import stored_file
from controlplane.api.work.history import MERGED, answer_history
from controlplane.commands.attempts.artifacts import put_artifact
from controlplane.commands.attempts.logs import append_output
from controlplane.commands.attempts.release import release_attempt
from controlplane.queries.attempts import artifacts
from controlplane.queries.views import attempts, history

MAX_TAIL = 100_000
LOG_PARAMETERS = ("stream", "after", "tail", "follow")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Attempts(ApiView):
    """Attempts, and what they left."""

    document = schemas.Attempt
    lookup_url_kwarg = "uid"
    lookup_value_converter = "uuid"

    def retrieve(self, request: Request, uid: UUID) -> Response:
        """Show one attempt."""
        return self.answer(attempts.get_attempt(uid))

    @Operation(page=True, answer=schemas.Change, parameters=MERGED)
    @action(detail=True, url_path="history")
    def list_history_of_attempt(self, request: Request, uid: UUID) -> Response:
        """List what happened to an attempt, newest first."""
        return answer_history(self, lambda **page: history.find_attempt_history(uid, **page))

    @Operation(body=schemas.ReleaseRequest, problems=(409,))
    @action(
        detail=True,
        methods=["post"],
        url_path="release",
        permission_classes=(IsAuthenticated, MayOperate),
    )
    def release_attempt(self, request: Request, uid: UUID) -> Response:
        """Confirm that nothing is left of an ended attempt, without its cell (operators)."""
        attempts.get_attempt(uid, though_deleted=True)
        options = read_part(request, schemas.ReleaseRequest)
        release_attempt(uid=uid, reason=options.reason, actor=self.actor, now=clock.now())
        return self.answer(attempts.get_attempt(uid, though_deleted=True))

    @Operation(
        answer="text/plain",
        parameters=[
            parameter("stream", "stdout (if it is missing) or stderr."),
            parameter("after", "Cursor: only what comes behind it.", int),
            parameter("tail", "Only the last so many lines.", int),
            parameter("follow", "true: continue until the attempt has ended.", bool),
        ],
    )
    @action(detail=True, url_path="logs")
    def read_logs(self, request: Request, uid: UUID) -> HttpResponse:
        """Read the output of an attempt as text; `X-Next-Cursor` is the next call's `after`."""
        stream, after, tail = read_log_query(self.query)
        attempts.get_attempt(uid)
        piece = artifacts.read_output(uid, stream, after=after, tail=tail)
        made = HttpResponse(piece.content, content_type="text/plain; charset=utf-8")
        made["X-Next-Cursor"] = str(piece.next_offset)
        return made

    @Operation(answer=schemas.Artifacts, problems=(400,))
    @action(detail=True, url_path="artifacts")
    def list_artifacts(self, request: Request, uid: UUID) -> Response:
        """List the outputs of an attempt that succeeded, or the checkpoint of one that did not."""
        Parameters(request)
        return self.answer({"results": artifacts.list_artifacts(uid), "next": None})


class AttemptArtifacts(ApiView):
    """One file that an attempt left."""

    def get_authenticators(self) -> Any:
        """Cells sign their uploads; other callers have a token."""
        return [] if self._is_of_a_cell() else super().get_authenticators()

    def get_permissions(self) -> Any:
        """See get_authenticators."""
        return [] if self._is_of_a_cell() else super().get_permissions()

    def _is_of_a_cell(self) -> bool:
        return getattr(self.request, "method", None) == "PUT"  # described, there is no request

    @Operation(answer="application/octet-stream", problems=(409,))
    def read_artifact(self, request: Request, uid: UUID, name: str) -> StreamingHttpResponse:
        """Read a file that an attempt left; 409 has the `uri` of a file that is kept elsewhere."""
        return stored_file(uid, name)

    @Operation(
        answer=schemas.UploadSize,
        body=bytes,
        parameters=[
            parameter("offset", "How many bytes came before.", int),
            parameter("size", "Of the whole.", int),
            parameter("sha256", "Of the whole."),
        ],
        problems=(401, 409, 413),
    )
    def put_artifact(self, request: Request, uid: UUID, name: str) -> Response:
        """Upload a piece (cells only, signed). `size` is the offset of the next piece."""
        check_cell(request, uid)
        offset, size = self.query.number("offset", least=0), self.query.number("size", least=0)
        sha256 = self.query.text("sha256") or ""
        if offset is None or size is None or not _SHA256.fullmatch(sha256):
            raise BadQuery("sha256", "is required in 64 hex digits, as are offset and size")
        content = read_bytes(request)
        here = put_artifact(
            uid=uid, name=name, size=size, sha256=sha256, offset=offset, content=content
        )
        return self.answer({"size": here})


class LogUploads(SignedView):
    """Where a cell brings the output of its attempts."""

    @Operation(
        answer=schemas.UploadSize,
        body=bytes,
        parameters=[parameter("offset", "How many bytes of the stream came before.", int)],
        problems=(401, 409, 410, 413),
    )
    def append_logs(self, request: Request, uid: UUID, stream: str) -> Response:
        """Append to a stream (cells only, signed). 409 and 410 have its `size`."""
        check_cell(request, uid)
        offset = self.query.number("offset", least=0)
        if offset is None:
            raise BadQuery("offset", "is required")
        content = read_bytes(request)
        return self.answer(
            {"size": append_output(uid=uid, stream=stream, offset=offset, content=content)}
        )


def read_log_query(parameters: Parameters) -> tuple[str, int, int | None]:
    """Return the requested stream, cursor and tail. Raise BadQuery."""
    parameters.flag("follow")
    return (
        parameters.choice("stream", artifacts.STREAMS) or artifacts.STREAMS[0],
        parameters.number("after", least=0) or 0,
        parameters.number("tail", least=1, most=MAX_TAIL),
    )
