"""Serve the inputs of tasks to cells by signed link, without further authentication."""

from collections.abc import AsyncIterator, Iterator
from itertools import islice
from uuid import UUID

from asgiref.sync import sync_to_async
from django.http import HttpResponse, StreamingHttpResponse
from django.utils.encoding import escape_uri_path
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request

from controlplane import clock
from controlplane.api import openapi
from controlplane.api.base import ApiView
from controlplane.api.requests import Parameters
from controlplane.api.stored_files import stored_file
from controlplane.domain.errors import NotFound
from controlplane.queries.attempts import artifacts
from controlplane.queries.attempts.group_specs import links_at

# As many lines, or tasks' outputs, go out at once.
_LINES = 20
_LINK = [
    openapi.parameter("expires", "Of the link: seconds since 1970.", int),
    openapi.parameter("signature", "Of the link."),
]


class _SignedView(ApiView):
    authentication_classes = ()
    permission_classes = ()

    def check_link(self, request: Request) -> None:
        """Raises PermissionDenied unless the link is ours and still valid."""
        link = Parameters(request, "expires", "signature")
        if not artifacts.is_signed(
            escape_uri_path(request.path),
            expires=link.text("expires") or "",
            signature=link.text("signature") or "",
            at=clock.now().timestamp(),
        ):
            raise PermissionDenied("the link is not signed by us, or has expired")


class StreamedLines(StreamingHttpResponse):
    """Lines, some at a time: there are more when those have been sent."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        super().__init__(lines, content_type="application/jsonl")
        self._lines = lines

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while some := await sync_to_async(self._take)():
            yield some

    def _take(self) -> bytes:
        return b"".join(islice(self._lines, _LINES))


class StoredInput(_SignedView):
    """The content of an input."""

    @openapi.describe(
        "read_input",
        answers={(200, "application/octet-stream"): bytes},
        parameters=_LINK,
        problems=(400, 403, 404),
        is_open=True,
    )
    def get(self, request: Request, digest: str) -> HttpResponse:
        """Fetch the content with that SHA-256, by a signed link."""
        self.check_link(request)
        content = artifacts.read_input(digest)
        if content is None:
            raise NotFound("the content is not here any more")
        return HttpResponse(content, content_type="application/octet-stream")


class StoredResults(_SignedView):
    """The results of a group."""

    @openapi.describe(
        "read_results",
        answers={(200, "application/jsonl"): str},
        parameters=_LINK,
        problems=(400, 403, 404),
        is_open=True,
    )
    def get(self, request: Request, group_id: int) -> StreamingHttpResponse:
        """Fetch the results of a group by a signed link: JSON lines of name (index) and content."""
        self.check_link(request)
        if not artifacts.has_group(group_id):
            raise NotFound(f"there is no group {group_id}")
        return StreamedLines(artifacts.iterate_results(group_id))


class StoredOutputs(_SignedView):
    """An output of a group's tasks."""

    @openapi.describe(
        "read_outputs",
        answers={(200, "application/jsonl"): str},
        parameters=_LINK,
        problems=(400, 403, 404),
        is_open=True,
    )
    def get(self, request: Request, group_id: int, name: str) -> StreamingHttpResponse:
        """Ask by a signed link where an output of a group is: JSON lines of name, url, sha256."""
        self.check_link(request)
        if not artifacts.has_group(group_id):
            raise NotFound(f"there is no group {group_id}")
        return StreamedLines(artifacts.iterate_outputs(group_id, name, links_at(clock.now())))


class StoredArtifact(_SignedView):
    """A file that an attempt left."""

    @openapi.describe(
        "read_stored_artifact",
        answers={(200, "application/octet-stream"): bytes},
        parameters=_LINK,
        problems=(400, 403, 404),
        is_open=True,
    )
    def get(self, request: Request, uid: UUID, name: str) -> StreamingHttpResponse:
        """Fetch what an attempt left, by a signed link."""
        self.check_link(request)
        return stored_file(uid, name)
