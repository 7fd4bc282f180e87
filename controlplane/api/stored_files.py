"""Respond with the content of a stored artifact, or with a part of it."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote
from uuid import UUID

from django.http import FileResponse, HttpResponseBase, HttpResponseRedirect
from rest_framework.request import Request
from whitenoise.responders import SlicedFile

from controlplane.api.problems import problem
from controlplane.queries.attempts import artifacts

BLOCK_BYTES = 256 * 1024
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


class _StoredFile(FileResponse):
    """A file in blocks, each read in a thread, so that a slow client holds no server thread."""

    file: Any = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while block := await asyncio.to_thread(self.file.read, BLOCK_BYTES):
            yield block


def stored_file(request: Request, uid: UUID, name: str) -> HttpResponseBase:
    """Return the response with an artifact, or a redirect to a link of the object store.

    Its SHA-256 is the ETag, so that `Range` with `If-Range` continues a download of the same file.
    Raise NotFound, ExternalArtifact.
    """
    link, item = artifacts.link_to_artifact(uid, name)
    if link is not None:
        redirect = HttpResponseRedirect(link)
        redirect["X-Cellrun-Sha256"] = item["sha256"]
        return redirect
    file, item = artifacts.open_artifact(uid, name)
    size, etag = item["size"], f'"{item["sha256"]}"'
    part = _requested_part(request.headers, size, etag)
    if part is not None and part[0] > part[1]:
        file.close()
        headers = {"Content-Range": f"bytes */{size}"}
        return problem(416, f"{name} has {size} bytes", headers=headers)
    content = file if part is None else SlicedFile(file, *part)
    made = _StoredFile(content, content_type="application/octet-stream")
    made.file = content
    if part is not None:
        made.status_code = 206
        made["Content-Length"] = str(part[1] - part[0] + 1)
        made["Content-Range"] = f"bytes {part[0]}-{part[1]}/{size}"
    made["Accept-Ranges"] = "bytes"
    made["ETag"] = etag
    made["X-Content-Type-Options"] = "nosniff"
    made["Content-Security-Policy"] = "sandbox; default-src 'none'"
    last = quote(name.rpartition("/")[2])
    made["Content-Disposition"] = f"attachment; filename*=utf-8''{last}"
    made["X-Cellrun-Sha256"] = item["sha256"]
    return made


def _requested_part(headers: Mapping[str, str], size: int, etag: str) -> tuple[int, int] | None:
    """Return the first and last byte that `Range` requests; None for the whole file.

    Several ranges, or an unknown form, are ignored, as RFC 9110 permits. The first byte is after
    the last one if no byte of the file is requested.
    """
    found = _RANGE.fullmatch(headers.get("Range", ""))
    if found is None or not any(found.groups()) or headers.get("If-Range", etag) != etag:
        return None
    first, last = found.groups()
    if not first:
        return max(size - int(last), 0), size - 1
    if last and int(last) < int(first):
        return None
    return int(first), min(int(last or size), size - 1)
