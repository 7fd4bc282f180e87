"""Serve inputs and artifacts by signed links.

A link of a cell is for a group: the cell signs its request, and must run an attempt of the group.
"""

from collections.abc import AsyncIterator, Iterator
from itertools import islice
from uuid import UUID

from asgiref.sync import sync_to_async
from django.http import HttpResponse, HttpResponseBase, HttpResponseRedirect, StreamingHttpResponse
from django.utils.encoding import escape_uri_path
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request

from controlplane import clock
from controlplane.api import charges
from controlplane.api.base import SignedView
from controlplane.api.openapi import Operation, parameter
from controlplane.api.stored_files import stored_file
from controlplane.commands.attempts.logs import check_link_use
from controlplane.domain.errors import NotFound
from controlplane.queries.attempts import artifacts
from controlplane.queries.attempts.group_specs import Link, links_of_group

# Lines, or outputs of tasks, in one chunk of a response.
_LINES = 20
_LINK = [
    parameter("group", "Group of the link, which only cells that run its work may use.", int),
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

    @Operation(answer="application/octet-stream", parameters=_LINK, problems=(401, 403))
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

    @Operation(answer="application/jsonl", parameters=_LINK, problems=(401, 403))
    def read_results(self, request: Request, group_id: int) -> StreamingHttpResponse:
        """Fetch the results of a group by a signed link: JSON lines of name (index), content."""
        self._check_link(group_id)
        return StreamedLines(artifacts.iterate_results(group_id))

    @Operation(answer="application/jsonl", parameters=_LINK, problems=(401, 403))
    def read_outputs(self, request: Request, group_id: int, name: str) -> StreamingHttpResponse:
        """Fetch the URLs of an output of a group by a signed link: JSON lines name, url, sha256."""
        self._check_link(group_id)
        return StreamedLines(artifacts.iterate_outputs(group_id, name, self._links()))

    @Operation(
        answer="application/octet-stream",
        codes=(200, 206),
        parameters=_LINK,
        problems=(401, 403, 416),
    )
    def read_stored_artifact(self, request: Request, uid: UUID, name: str) -> HttpResponseBase:
        """Fetch an artifact of an attempt by a signed link; `Range` returns a part with 206."""
        self._check_link(for_browsers=True)
        return stored_file(request, uid, name)

    def _group(self) -> int | None:
        """Return the group of the link; None for a link without a valid one."""
        text = self.query.text("group") or ""
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None

    def _links(self) -> Link:
        group = self._group()
        assert group is not None  # checked with the link
        return links_of_group(group, clock.now())

    def _check_link(self, group_id: int | None = None, *, for_browsers: bool = False) -> None:
        """Raise PermissionDenied for an invalid or expired link, NotFound without the group.

        `for_browsers`: whether a link without a group is valid. Raise BadUpload for another client
        than a cell that runs an attempt of the link's group.
        """
        group, now = self._group(), clock.now()
        if (group is None and not for_browsers) or not artifacts.is_signed(
            escape_uri_path(self.request.path),
            expires=self.query.text("expires") or "",
            signature=self.query.text("signature") or "",
            at=now.timestamp(),
            group=group,
        ):
            raise PermissionDenied("the link is invalid or has expired: request a new one")
        if group is not None:
            check_link_use(
                cell=self.request.headers.get("X-Cellrun-Cell", ""),
                time=self.request.headers.get("X-Cellrun-Time", ""),
                mac=self.request.headers.get("X-Cellrun-Mac", ""),
                path=self.request.get_full_path(),
                group_id=group,
                now=now,
            )
            charges.settle(self.request)
        else:
            charges.admit_unsigned(self.request)
        if group_id is not None and not artifacts.has_group(group_id):
            raise NotFound(f"there is no group {group_id}")
