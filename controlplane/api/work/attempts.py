"""Endpoints of attempts: show, read output and artifacts, release, upload (cells)."""

import re
from functools import partial
from typing import Any
from uuid import UUID

from django.http import HttpResponse, HttpResponseBase
from rest_framework.decorators import action
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import clock
from controlplane.api import schemas
from controlplane.api.agents.attempt_requests import check_cell, check_cell_of_batch
from controlplane.api.base import ApiView, MayOperate, SignedView
from controlplane.api.openapi import Operation, parameter
from controlplane.api.problems import BadQuery
from controlplane.api.requests import Parameters, read_bytes, read_part
from controlplane.api.stored_files import stored_file
from controlplane.api.walls import check_artifacts, check_attempt
from controlplane.api.work.history import MERGED, answer_history
from controlplane.commands.attempts.artifacts import announce_artifact, put_artifact
from controlplane.commands.attempts.logs import append_output, append_outputs
from controlplane.commands.attempts.release import release_attempt
from controlplane.contract.codec import MalformedMessage
from controlplane.contract.output_batch import unpack_pieces
from controlplane.queries.attempts import artifacts
from controlplane.queries.tenancy.foreign_jobs import hide_foreign_jobs
from controlplane.queries.views import attempts, history
from controlplane.spec.faults import UnreadableDocument

MAX_TAIL = 100_000
LOG_PARAMETERS = ("stream", "after", "tail", "follow")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ANNOUNCED = [
    parameter("size", "Size of the whole file in bytes.", int),
    parameter("sha256", "SHA-256 of the whole file, as 64 hex digits."),
]


class Attempts(ApiView):
    """Attempts with their history, output and artifacts."""

    document = schemas.Attempt
    lookup_url_kwarg = "uid"
    lookup_value_converter = "uuid"

    def retrieve(self, request: Request, uid: UUID) -> Response:
        """Show one attempt."""
        check_attempt(self.access, uid)
        found = attempts.get_attempt(uid)
        return self.answer(hide_foreign_jobs(found, self.access.readable, own={found["job"]}))

    @Operation(page=True, answer=schemas.Change, parameters=MERGED)
    @action(detail=True, url_path="history")
    def list_history_of_attempt(self, request: Request, uid: UUID) -> Response:
        """List the changes of an attempt, newest first."""
        check_attempt(self.access, uid)
        return answer_history(self, partial(history.find_attempt_history, uid))

    @Operation(body=schemas.ReleaseRequest, problems=(409,))
    @action(
        detail=True,
        methods=["post"],
        url_path="release",
        permission_classes=(IsAuthenticated, MayOperate),
    )
    def release_attempt(self, request: Request, uid: UUID) -> Response:
        """Release an ended attempt whose container is gone, without its cell (operators)."""
        attempts.get_attempt(uid, though_deleted=True)
        options = read_part(request, schemas.ReleaseRequest)
        release_attempt(uid=uid, reason=options.reason, actor=self.actor, now=clock.now())
        return self.answer(attempts.get_attempt(uid, though_deleted=True))

    @Operation(
        answer="text/plain",
        parameters=[
            parameter("stream", "stdout (default) or stderr."),
            parameter("after", "Cursor (`X-Next-Cursor`): only later output.", int),
            parameter("tail", "Only this number of last lines, from 1 to 100000.", int),
            parameter("follow", "true: stream the output until the attempt has ended.", bool),
        ],
    )
    @action(detail=True, url_path="logs")
    def read_logs(self, request: Request, uid: UUID) -> HttpResponse:
        """Read the output of an attempt as text; `X-Next-Cursor` is `after` of the next request."""
        stream, after, tail = read_log_query(self.query)
        check_attempt(self.access, uid)
        piece = artifacts.read_output(uid, stream, after=after, tail=tail)
        made = HttpResponse(piece.content, content_type="text/plain; charset=utf-8")
        made["X-Next-Cursor"] = str(piece.next_offset)
        return made

    @Operation(answer=schemas.Artifacts, problems=(400,))
    @action(detail=True, url_path="artifacts")
    def list_artifacts(self, request: Request, uid: UUID) -> Response:
        """List the artifacts of an attempt: outputs if it succeeded, otherwise the checkpoint."""
        Parameters(request)
        check_artifacts(self.access, uid)
        return self.answer({"results": artifacts.list_artifacts(uid), "next": None})


class AttemptArtifacts(ApiView):
    """One artifact of an attempt."""

    def get_authenticators(self) -> Any:
        """Return no authenticators for uploads, which cells sign; others need a token."""
        return [] if self._is_of_a_cell() else super().get_authenticators()

    def get_permissions(self) -> Any:
        """Return no permissions for uploads: see `get_authenticators`."""
        return [] if self._is_of_a_cell() else super().get_permissions()

    def _is_of_a_cell(self) -> bool:
        # The method is None in the OpenAPI description.
        return getattr(self.request, "method", None) in ("POST", "PUT")

    @Operation(answer="application/octet-stream", codes=(200, 206), problems=(409, 416))
    def read_artifact(self, request: Request, uid: UUID, name: str) -> HttpResponseBase:
        """Read an artifact; 409 has the `uri` of one that is stored elsewhere.

        `Range` returns a part with 206; the ETag, for `If-Range`, is the SHA-256.
        """
        check_artifacts(self.access, uid)
        return stored_file(request, uid, name)

    @Operation(
        answer=schemas.UploadState,
        body=bytes,
        parameters=_ANNOUNCED,
        problems=(401, 409, 413, 507),
    )
    def announce_artifact(self, request: Request, uid: UUID, name: str) -> Response:
        """Announce an artifact (cells only, signed).

        `size`: the stored bytes. `url`: where the whole file is sent by PUT with `headers`, and
        then confirmed with an empty piece at its end; null: it is sent here in pieces.
        """
        check_cell(request, uid)
        state = announce_artifact(uid=uid, name=name, **self._announced())
        return self.answer({"size": state.size, "url": state.url, "headers": state.headers})

    @Operation(
        answer=schemas.UploadSize,
        body=bytes,
        parameters=[
            parameter("offset", "Number of bytes of the file before this piece.", int),
            *_ANNOUNCED,
        ],
        problems=(401, 409, 413, 507),
    )
    def put_artifact(self, request: Request, uid: UUID, name: str) -> Response:
        """Upload a piece of an artifact (cells only, signed). `size`: offset of the next piece."""
        check_cell(request, uid)
        offset = self.query.number("offset", least=0)
        if offset is None:
            raise BadQuery("offset", "is required")
        content = read_bytes(request)
        here = put_artifact(uid=uid, name=name, offset=offset, content=content, **self._announced())
        return self.answer({"size": here})

    def _announced(self) -> dict[str, Any]:
        """Return size and SHA-256 of the whole file. Raise BadQuery."""
        size, sha256 = self.query.number("size", least=0), self.query.text("sha256") or ""
        if size is None or not _SHA256.fullmatch(sha256):
            raise BadQuery("sha256", "size and sha256 (64 hex digits) are required")
        return {"size": size, "sha256": sha256}


class LogUploads(SignedView):
    """Uploads of output by cells."""

    @Operation(
        answer=schemas.UploadSize,
        body=bytes,
        parameters=[parameter("offset", "Number of bytes of the stream before this piece.", int)],
        problems=(401, 409, 410, 413, 507),
    )
    def append_logs(self, request: Request, uid: UUID, stream: str) -> Response:
        """Append to a stream (cells only, signed). 409 and 410 have the `size` of the stream."""
        check_cell(request, uid)
        offset = self.query.number("offset", least=0)
        if offset is None:
            raise BadQuery("offset", "is required")
        content = read_bytes(request)
        return self.answer(
            {"size": append_output(uid=uid, stream=stream, offset=offset, content=content)}
        )


class LogBatches(SignedView):
    """Uploads of output of several attempts by cells."""

    @Operation(answer=schemas.StoredOutputs, body=bytes, problems=(401, 413))
    def append_log_batch(self, request: Request) -> Response:
        """Append to streams of several attempts (cells only, signed).

        The body is a line of JSON, a list of `[uid, stream, offset, length]`, and then the bytes of
        these pieces. Send attempts that are `untried` in a further batch, and upload the pieces of
        attempts that the response does not name one by one.
        """
        cell, body = check_cell_of_batch(request)
        try:
            pieces = unpack_pieces(body)
        except MalformedMessage as error:
            raise UnreadableDocument(str(error)) from None
        stored, untried = append_outputs(cell, pieces)
        return self.answer({"stored": stored, "untried": untried})


def read_log_query(parameters: Parameters) -> tuple[str, int, int | None]:
    """Return the requested stream, cursor and tail. Raise BadQuery."""
    parameters.flag("follow")
    return (
        parameters.choice("stream", artifacts.STREAMS) or artifacts.STREAMS[0],
        parameters.number("after", least=0) or 0,
        parameters.number("tail", least=1, most=MAX_TAIL),
    )
