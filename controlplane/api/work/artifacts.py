"""Endpoints of artifacts: cells upload them in pieces; users list and read them."""

import re
from typing import Any
from uuid import UUID

from django.http import HttpResponse, StreamingHttpResponse
from rest_framework.request import Request

from controlplane.api import openapi
from controlplane.api.agents.attempt_requests import check_cell
from controlplane.api.base import ApiView
from controlplane.api.problems import BadQuery
from controlplane.api.requests import Parameters, read_bytes
from controlplane.api.responses import answer
from controlplane.api.stored_files import stored_file
from controlplane.commands.attempts.artifacts import put_artifact
from controlplane.queries.attempts import artifacts

_SHA256 = re.compile(r"[0-9a-f]{64}")


class Artifacts(ApiView):
    """What an attempt left."""

    @openapi.describe(
        "list_artifacts", answers={200: openapi.page_of("Artifact")}, problems=(400, 404)
    )
    def get(self, request: Request, uid: UUID) -> HttpResponse:
        """List the outputs of an attempt that succeeded, or the checkpoint of one that did not."""
        Parameters(request)
        return answer({"results": artifacts.list_artifacts(uid), "next": None})


class ArtifactDetail(ApiView):
    """One file that an attempt left."""

    def get_authenticators(self) -> Any:
        """Cells sign their uploads; other callers have a token."""
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
        """Read a file that an attempt left; 409 has the `uri` of a file that is kept elsewhere."""
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
        """Upload a piece (cells only, signed). `size` is the offset of the next piece."""
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
