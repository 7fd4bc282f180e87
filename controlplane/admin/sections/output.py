"""The output of attempts on pages: the end of each stream, its continuation, and the whole."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import UUID

from django.http import FileResponse, Http404, HttpResponse, HttpResponseBase
from django.urls import reverse

from controlplane.admin.base import Section
from controlplane.models import Attempt
from controlplane.storage.current import current_store
from controlplane.storage.interface import MAX_STREAM_BYTES, STREAMS

# The shown part of each stream; a download has all of it.
_SHOWN_LINES = 200
_SHOWN_BYTES = 64 * 1024
# The last lines on the page of a job.
_LAST_LINES = 10
_LAST_BYTES = 4 * 1024
_BLOCK_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class OutputTail:
    """The end of a stream. `is_cut`: there is more before it. `fault`: why it cannot be read.

    `next_offset`: where later output begins. `address`: of the whole stream.
    """

    stream: str
    text: str = ""
    is_cut: bool = False
    next_offset: int = 0
    fault: str = ""
    address: str = ""


@dataclass(frozen=True, slots=True)
class Output(Section):
    """The ends of the streams of an attempt. `is_followed`: later output may follow."""

    template: ClassVar[str] = "controlplane/section_output.html"
    streams: Sequence[OutputTail] = ()
    lines: int = _SHOWN_LINES
    is_followed: bool = False


def output_section(attempt: Attempt) -> Output:
    """Return the last lines of each stream of an attempt."""
    streams = [
        read_tail(attempt.pk, stream, lines=_SHOWN_LINES, limit=_SHOWN_BYTES) for stream in STREAMS
    ]
    return Output(
        "Output", anchor="output", streams=streams, is_followed=attempt.released_at is None
    )


def find_last_lines(uid: UUID) -> OutputTail:
    """Return the last lines of stderr, or of stdout if an attempt has written none to stderr."""
    for stream in reversed(STREAMS):
        tail = read_tail(uid, stream, lines=_LAST_LINES, limit=_LAST_BYTES)
        if tail.text.strip() or tail.fault:
            break
    return tail


def read_tail(uid: UUID, stream: str, *, lines: int, limit: int) -> OutputTail:
    """Return the last `lines` lines of a stream, at most `limit` bytes."""
    store = current_store()
    address = reverse("admin:controlplane_attempt_output", args=[uid, stream])
    try:
        start = store.find_tail(uid, stream, lines=lines, limit=limit)
        piece = store.read_log(uid, stream, offset=start, limit=limit)
    except OSError as fault:
        return OutputTail(stream, fault=f"the store does not answer: {fault}", address=address)
    text = piece.content.decode("utf-8", errors="replace")
    return OutputTail(stream, text, start > 0, piece.next_offset, address=address)


def output_response(uid: UUID, stream: str, query: Mapping[str, str]) -> HttpResponseBase:
    """Return a whole stream as a file, or with `after` a piece from this offset on. Raise Http404.

    `X-Next-Cursor` of a piece is the offset of the next one, as in the API.
    """
    if stream not in STREAMS:
        raise Http404(f"there is no stream {stream}")
    after = query.get("after", "")
    response: HttpResponseBase
    if after.isascii() and after.isdigit():
        start = min(int(after), MAX_STREAM_BYTES)
        try:
            piece = current_store().read_log(uid, stream, offset=start, limit=_SHOWN_BYTES)
        except OSError as fault:
            text = f"the store does not answer: {fault}"
            return HttpResponse(text, content_type="text/plain; charset=utf-8", status=503)
        response = HttpResponse(piece.content, content_type="text/plain; charset=utf-8")
        response["X-Next-Cursor"] = str(piece.next_offset)
    else:
        reader = _StreamReader(uid, stream)
        response = _StreamFile(
            reader,
            as_attachment=True,
            filename=f"{uid}.{stream}.txt",
            content_type="text/plain; charset=utf-8",
        )
        response.reader = reader
    response["Cache-Control"] = "no-store"
    response["X-Content-Type-Options"] = "nosniff"
    response["Content-Security-Policy"] = "sandbox; default-src 'none'"
    return response


class _StreamReader:
    """A file of which the content is a stream in the store."""

    def __init__(self, uid: UUID, stream: str) -> None:
        self._uid, self._stream, self._offset = uid, stream, 0

    def read(self, size: int = _BLOCK_BYTES) -> bytes:
        """Return the next part of at most `size` bytes; none at the end."""
        piece = current_store().read_log(self._uid, self._stream, offset=self._offset, limit=size)
        self._offset = piece.next_offset
        return piece.content

    def close(self) -> None:
        """Do nothing: each part is read by itself."""


class _StreamFile(FileResponse):
    """A stream in blocks, each read in a thread, so that a slow client holds no server thread."""

    reader: Any = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while block := await asyncio.to_thread(self.reader.read):
            yield block
