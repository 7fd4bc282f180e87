"""Endpoints of attempts: show, read output, release; cells upload output here."""

import hashlib
from uuid import UUID

from django.http import HttpResponse
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request

from controlplane import clock
from controlplane.api import openapi
from controlplane.api.base import ApiView, MayOperate
from controlplane.api.problems import BadQuery
from controlplane.api.requests import Parameters, read_bytes, read_part
from controlplane.api.responses import answer
from controlplane.api.schemas import ReleaseRequest
from controlplane.commands.attempts.logs import append_output, check_upload
from controlplane.commands.attempts.release import release_attempt
from controlplane.queries.attempts import artifacts
from controlplane.queries.views import attempts

MAX_TAIL = 100_000


class AttemptDetail(ApiView):
    """One attempt."""

    @openapi.describe("get_attempt", answers={200: openapi.ref("Attempt")}, problems=(404,))
    def get(self, request: Request, uid: UUID) -> HttpResponse:
        """Show one attempt."""
        return answer(attempts.get_attempt(uid))


class AttemptRelease(ApiView):
    """Release an attempt by hand."""

    permission_classes = (IsAuthenticated, MayOperate)

    @openapi.describe(
        "release_attempt",
        body="ReleaseRequest",
        answers={200: openapi.ref("Attempt")},
        problems=(400, 403, 404, 409, 413, 415, 422),
    )
    def post(self, request: Request, uid: UUID) -> HttpResponse:
        """Confirm that nothing is left of an ended attempt, without its cell (operators)."""
        attempts.get_attempt(uid, though_deleted=True)
        asked = read_part(request, ReleaseRequest)
        actor = request.user.get_username()
        release_attempt(uid=uid, reason=asked.reason, actor=actor, now=clock.now())
        return answer(attempts.get_attempt(uid, though_deleted=True))


class AttemptLogs(ApiView):
    """The output of an attempt."""

    @openapi.describe(
        "read_logs",
        answers={(200, "text/plain"): str},
        parameters=[
            openapi.parameter("stream", "stdout (if it is missing) or stderr."),
            openapi.parameter("after", "Cursor: only what comes behind it.", int),
            openapi.parameter("tail", "Only the last so many lines.", int),
            openapi.parameter("follow", "true: continue until the attempt has ended.", bool),
        ],
        problems=(400, 404),
    )
    def get(self, request: Request, uid: UUID) -> HttpResponse:
        """Read the output of an attempt as text; `X-Next-Cursor` is the next call's `after`."""
        wanted = read_log_query(Parameters(request, *LOG_PARAMETERS))
        attempts.get_attempt(uid)
        stream, after, tail = wanted
        piece = artifacts.read_output(uid, stream, after=after, tail=tail)
        made = HttpResponse(piece.content, content_type="text/plain; charset=utf-8")
        made["X-Next-Cursor"] = str(piece.next_offset)
        return made


LOG_PARAMETERS = ("stream", "after", "tail", "follow")


def read_log_query(parameters: Parameters) -> tuple[str, int, int | None]:
    """Stream, cursor and tail that are asked for. Raises BadQuery."""
    parameters.flag("follow")
    return (
        parameters.choice("stream", artifacts.STREAMS) or artifacts.STREAMS[0],
        parameters.number("after", least=0) or 0,
        parameters.number("tail", least=1, most=MAX_TAIL),
    )


class LogUpload(ApiView):
    """Where a cell brings the output of its attempts."""

    authentication_classes = ()
    permission_classes = ()

    @openapi.describe(
        "append_logs",
        body=openapi.BYTES["application/octet-stream"],
        answers={200: openapi.ref("UploadSize")},
        parameters=[openapi.parameter("offset", "How many bytes of the stream came before.", int)],
        problems=(400, 401, 404, 409, 410, 413),
        is_open=True,
    )
    def put(self, request: Request, uid: UUID, stream: str) -> HttpResponse:
        """Append to a stream (cells only, signed). 409 and 410 have its `size`."""
        content = read_bytes(request)
        check_upload(
            cell=request.headers.get("X-Cellrun-Cell", ""),
            time=request.headers.get("X-Cellrun-Time", ""),
            mac=request.headers.get("X-Cellrun-Mac", ""),
            path=request.get_full_path(),
            digest=hashlib.sha256(content).hexdigest(),
            uid=uid,
            now=clock.now(),
        )
        offset = Parameters(request, "offset").number("offset", least=0)
        if offset is None:
            raise BadQuery("offset", "is required")
        size = append_output(uid=uid, stream=stream, offset=offset, content=content)
        return answer({"size": size})
