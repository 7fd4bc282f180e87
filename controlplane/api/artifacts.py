"""What attempts left: cells bring it in pieces, everybody who sees the job lists and reads it."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote
from uuid import UUID

from django.http import FileResponse, HttpResponse, StreamingHttpResponse
from rest_framework.request import Request

from controlplane.api import openapi
from controlplane.api.answers import answer
from controlplane.api.base import Door
from controlplane.api.bodies import Parameters, read_bytes
from controlplane.api.cell_requests import check_cell
from controlplane.api.problems import BadQuery
from controlplane.commands.attempts.artifacts import put_artifact
from controlplane.queries.attempts import artifacts

BLOCK_BYTES = 256 * 1024
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Artifacts(Door):
    """What an attempt left."""

    @openapi.describe(
        "list_artifacts", answers={200: openapi.page_of("Artifact")}, problems=(400, 404)
    )
    def get(self, request: Request, uid: UUID) -> HttpResponse:
        """List the outputs of an attempt that succeeded, or the checkpoint of one that did not."""
        Parameters(request)
        return answer({"results": artifacts.list_artifacts(uid), "next": None})


class ArtifactDetail(Door):
    """One file that an attempt left."""

    def get_authenticators(self) -> Any:
        """Cells sign what they bring; everybody else has a token."""
        return [] if self._is_of_a_cell() else super().get_authenticators()

    def get_permissions(self) -> Any:
        """See get_authenticators."""
        return [] if self._is_of_a_cell() else super().get_permissions()

    def _is_of_a_cell(self) -> bool:
        return getattr(self.request, "method", None) == "PUT"  # described, there is no request

    @openapi.describe(
        "read_artifact",
        answers={(200, "application/octet-stream"): bytes},
        problems=(404, 409),
    )
    def get(self, request: Request, uid: UUID, name: str) -> StreamingHttpResponse:
        """Read a file that an attempt left; 409 says the `uri` of what is not kept here."""
        return stored_file(uid, name)

    @openapi.describe(
        "put_artifact",
        body=openapi.BYTES["application/octet-stream"],
        answers={200: openapi.ref("UploadSize")},
        parameters=[
            openapi.parameter("offset", "How many bytes came before.", int),
            openapi.parameter("size", "Of the whole.", int),
            openapi.parameter("sha256", "Of the whole."),
        ],
        problems=(400, 401, 404, 409, 413),
        is_open=True,
    )
    def put(self, request: Request, uid: UUID, name: str) -> HttpResponse:
        """Bring a piece (cells only, signed). `size` says how much is here: go on from there."""
        check_cell(request, uid)
        said = Parameters(request, "offset", "size", "sha256")
        offset, size = said.number("offset", least=0), said.number("size", least=0)
        sha256 = said.text("sha256") or ""
        if offset is None or size is None or not _SHA256.fullmatch(sha256):
            raise BadQuery("sha256", "is required in 64 hex digits, as are offset and size")
        content = read_bytes(request)
        here = put_artifact(
            uid=uid, name=name, size=size, sha256=sha256, offset=offset, content=content
        )
        return answer({"size": here})


class _StoredFile(FileResponse):
    """A file in blocks, each read in a thread: no server thread is held as long as it takes."""

    file: Any = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while block := await asyncio.to_thread(self.file.read, BLOCK_BYTES):
            yield block


def stored_file(uid: UUID, name: str) -> StreamingHttpResponse:
    """The answer with a file that an attempt left. Raises NotFound, Elsewhere."""
    file, item = artifacts.open_artifact(uid, name)
    made = _StoredFile(file, content_type="application/octet-stream")
    made.file = file
    made["X-Content-Type-Options"] = "nosniff"
    last = quote(name.rpartition("/")[2])
    made["Content-Disposition"] = f"attachment; filename*=utf-8''{last}"
    made["X-Cellrun-Sha256"] = item["sha256"]
    return made
