"""Serve inputs and artifacts by signed links, without further authentication."""

from collections.abc import AsyncIterator, Iterator
from itertools import islice
from uuid import UUID

from asgiref.sync import sync_to_async
from django.http import HttpResponse, HttpResponseBase, HttpResponseRedirect, StreamingHttpResponse
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

# Lines, or outputs of tasks, in one chunk of a response.
_LINES = 20
_LINK = [
    parameter("expires", "Expiry of the link, in seconds since 1970.", int),
    parameter("signature", "Signature of the link."),
]


class StreamedLines(StreamingHttpResponse):
    """A response of lines, which are read in chunks as the client takes them."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        super().__init__(lines, content_type="application/jsonl")
        self._lines = lines

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while some := await sync_to_async(self._take)():
            yield some

    def _take(self) -> bytes:
        return b"".join(islice(self._lines, _LINES))


class Store(SignedView):
    """Files with signed links."""

    @Operation(answer="application/octet-stream", parameters=_LINK, problems=(403,))
    def read_input(self, request: Request, digest: str) -> HttpResponse:
        """Fetch the input with this SHA-256 by a signed link."""
        self._check_link()
        link = artifacts.link_to_input(digest)
        if link is not None:
            return HttpResponseRedirect(link)
        content = artifacts.read_input(digest)
        if content is None:
            raise NotFound("the input is no longer stored")
        return HttpResponse(content, content_type="application/octet-stream")

    @Operation(answer="application/jsonl", parameters=_LINK, problems=(403,))
    def read_results(self, request: Request, group_id: int) -> StreamingHttpResponse:
        """Fetch the results of a group by a signed link: JSON lines of name (index), content."""
        self._check_link(group_id)
        return StreamedLines(artifacts.iterate_results(group_id))

    @Operation(answer="application/jsonl", parameters=_LINK, problems=(403,))
    def read_outputs(self, request: Request, group_id: int, name: str) -> StreamingHttpResponse:
        """Fetch the URLs of an output of a group by a signed link: JSON lines name, url, sha256."""
        self._check_link(group_id)
        return StreamedLines(artifacts.iterate_outputs(group_id, name, links_at(clock.now())))

    @Operation(
        answer="application/octet-stream", codes=(200, 206), parameters=_LINK, problems=(403, 416)
    )
    def read_stored_artifact(self, request: Request, uid: UUID, name: str) -> HttpResponseBase:
        """Fetch an artifact of an attempt by a signed link; `Range` returns a part with 206."""
        self._check_link()
        return stored_file(request, uid, name)

    def _check_link(self, group_id: int | None = None) -> None:
        """Raise PermissionDenied for an invalid or expired link, NotFound without the group."""
        if not artifacts.is_signed(
            escape_uri_path(self.request.path),
            expires=self.query.text("expires") or "",
            signature=self.query.text("signature") or "",
            at=clock.now().timestamp(),
        ):
            raise PermissionDenied("the link is invalid or has expired: request a new one")
        if group_id is not None and not artifacts.has_group(group_id):
            raise NotFound(f"there is no group {group_id}")
