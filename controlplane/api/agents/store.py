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
from controlplane.api.base import SignedView
from controlplane.api.openapi import Operation, parameter
from controlplane.api.stored_files import stored_file
from controlplane.domain.errors import NotFound
from controlplane.queries.attempts import artifacts
from controlplane.queries.attempts.group_specs import links_at

# As many lines, or tasks' outputs, go out at once.
_LINES = 20
_LINK = [
    parameter("expires", "Of the link: seconds since 1970.", int),
    parameter("signature", "Of the link."),
]


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


class Store(SignedView):
    """Files behind signed links."""

    @Operation(answer="application/octet-stream", parameters=_LINK, problems=(403,))
    def read_input(self, request: Request, digest: str) -> HttpResponse:
        """Fetch the content with that SHA-256, by a signed link."""
        self._check_link()
        content = artifacts.read_input(digest)
        if content is None:
            raise NotFound("the content is not here any more")
        return HttpResponse(content, content_type="application/octet-stream")

    @Operation(answer="application/jsonl", parameters=_LINK, problems=(403,))
    def read_results(self, request: Request, group_id: int) -> StreamingHttpResponse:
        """Fetch the results of a group by a signed link: JSON lines of name (index) and content."""
        self._check_link(group_id)
        return StreamedLines(artifacts.iterate_results(group_id))

    @Operation(answer="application/jsonl", parameters=_LINK, problems=(403,))
    def read_outputs(self, request: Request, group_id: int, name: str) -> StreamingHttpResponse:
        """Ask by a signed link where an output of a group is: JSON lines of name, url, sha256."""
        self._check_link(group_id)
        return StreamedLines(artifacts.iterate_outputs(group_id, name, links_at(clock.now())))

    @Operation(answer="application/octet-stream", parameters=_LINK, problems=(403,))
    def read_stored_artifact(self, request: Request, uid: UUID, name: str) -> StreamingHttpResponse:
        """Fetch what an attempt left, by a signed link."""
        self._check_link()
        return stored_file(uid, name)

    def _check_link(self, group_id: int | None = None) -> None:
        """Raise PermissionDenied if the link is not ours or expired; NotFound without the group."""
        if not artifacts.is_signed(
            escape_uri_path(self.request.path),
            expires=self.query.text("expires") or "",
            signature=self.query.text("signature") or "",
            at=clock.now().timestamp(),
        ):
            raise PermissionDenied("the link is not signed by us, or has expired")
        if group_id is not None and not artifacts.has_group(group_id):
            raise NotFound(f"there is no group {group_id}")
