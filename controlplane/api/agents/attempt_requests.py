"""Endpoints for signed requests of cells about their own attempts."""

import hashlib
from uuid import UUID

from django.http import HttpResponse
from rest_framework.request import Request

from controlplane import clock
from controlplane.api import openapi
from controlplane.api.base import ApiView
from controlplane.api.requests import read_bytes
from controlplane.commands.attempts.launch_context import seal_gang, seal_launch_context
from controlplane.commands.attempts.logs import check_upload

_MAC = "X-Cellrun-Mac"


def check_cell(request: Request, uid: UUID) -> str:
    """The cell that signed the request, which the attempt is on. Raises BadUpload, NotFound."""
    cell = request.headers.get("X-Cellrun-Cell", "")
    check_upload(
        cell=cell,
        time=request.headers.get("X-Cellrun-Time", ""),
        mac=request.headers.get(_MAC, ""),
        path=request.get_full_path(),
        digest=hashlib.sha256(read_bytes(request)).hexdigest(),
        uid=uid,
        now=clock.now(),
    )
    return cell


class LaunchContextView(ApiView):
    """Where a cell asks for what an attempt needs beside its order."""

    authentication_classes = ()
    permission_classes = ()

    @openapi.describe(
        "get_briefing",
        body=openapi.BYTES["application/octet-stream"],
        answers={200: openapi.BYTES["application/octet-stream"]},
        problems=(401, 404, 409),
        is_open=True,
    )
    def post(self, request: Request, uid: UUID) -> HttpResponse:
        """Ask for the secrets and the rest that an attempt needs (cells only, signed); sealed."""
        cell = check_cell(request, uid)
        return HttpResponse(
            seal_launch_context(cell=cell, uid=uid, mac=request.headers[_MAC]),
            content_type="application/octet-stream",
        )


class GangView(ApiView):
    """Where a cell asks what became of the other members of an attempt's gang."""

    authentication_classes = ()
    permission_classes = ()

    @openapi.describe(
        "get_gang",
        body=openapi.BYTES["application/octet-stream"],
        answers={200: openapi.BYTES["application/octet-stream"]},
        problems=(401, 404),
        is_open=True,
    )
    def post(self, request: Request, uid: UUID) -> HttpResponse:
        """Ask where the members of an attempt's gang are reached (cells only, signed); sealed."""
        cell = check_cell(request, uid)
        return HttpResponse(
            seal_gang(cell=cell, uid=uid, mac=request.headers[_MAC]),
            content_type="application/octet-stream",
        )
