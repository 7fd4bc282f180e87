"""Respond with the content of a stored artifact."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote
from uuid import UUID

from django.http import FileResponse, HttpResponseBase, HttpResponseRedirect

from controlplane.queries.attempts import artifacts

BLOCK_BYTES = 256 * 1024


class _StoredFile(FileResponse):
    """A file in blocks, each read in a thread, so that a slow client holds no server thread."""

    file: Any = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while block := await asyncio.to_thread(self.file.read, BLOCK_BYTES):
            yield block


def stored_file(uid: UUID, name: str) -> HttpResponseBase:
    """Return the response with an artifact, or a redirect to a link of the object store.

    Raise NotFound, ExternalArtifact.
    """
    link, item = artifacts.link_to_artifact(uid, name)
    if link is not None:
        redirect = HttpResponseRedirect(link)
        redirect["X-Cellrun-Sha256"] = item["sha256"]
        return redirect
    file, item = artifacts.open_artifact(uid, name)
    made = _StoredFile(file, content_type="application/octet-stream")
    made.file = file
    made["X-Content-Type-Options"] = "nosniff"
    last = quote(name.rpartition("/")[2])
    made["Content-Disposition"] = f"attachment; filename*=utf-8''{last}"
    made["X-Cellrun-Sha256"] = item["sha256"]
    return made
