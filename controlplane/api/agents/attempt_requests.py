"""Endpoints for signed requests of cells about their own attempts."""

import hashlib
from collections.abc import Callable
from functools import partial
from typing import TypeVar
from uuid import UUID

from django.http import HttpResponse
from rest_framework.request import Request

from controlplane import clock
from controlplane.api import charges
from controlplane.api.base import SignedView
from controlplane.api.openapi import Operation
from controlplane.api.requests import read_bytes
from controlplane.commands.attempts.launch_context import seal_gang, seal_launch_context
from controlplane.commands.attempts.logs import BadUpload, check_batch_signature, check_signature
from controlplane.domain.errors import NotFound

_MAC = "X-Cellrun-Mac"
S = TypeVar("S")


def check_cell(request: Request, uid: UUID) -> tuple[str, bytes]:
    """Return the cell that runs the attempt, and the key with which it signed the request.

    Raise BadUpload, NotFound.
    """
    cell, _, signature = _check_signed(request, partial(check_signature, uid=uid))
    if not signature.owns_attempt:
        raise NotFound(f"cell {cell} has no attempt {uid}")
    return cell, signature.key


def check_cell_of_batch(request: Request) -> tuple[str, bytes]:
    """Return the cell that signed a request about several attempts, and the body.

    Raise BadUpload.
    """
    cell, body, _ = _check_signed(request, check_batch_signature)
    return cell, body


def _check_signed(request: Request, check: Callable[..., S]) -> tuple[str, bytes, S]:
    """Return the cell that signed a request, the body, and what `check` returns.

    Raise BadUpload.
    """
    cell, body = request.headers.get("X-Cellrun-Cell", ""), read_bytes(request)
    try:
        found = check(
            cell=cell,
            time=request.headers.get("X-Cellrun-Time", ""),
            mac=request.headers.get(_MAC, ""),
            path=request.get_full_path(),
            digest=hashlib.sha256(body).hexdigest(),
            now=clock.now(),
        )
    except BadUpload:
        charges.admit_unsigned(request, len(body))
        raise
    charges.settle(request)
    return cell, body, found


class CellRequests(SignedView):
    """Requests of cells about their attempts; the responses are sealed."""

    @Operation(body=bytes, answer="application/octet-stream", problems=(401, 409))
    def get_launch_context(self, request: Request, uid: UUID) -> HttpResponse:
        """Return the sealed launch context of an attempt with its secrets (cells only, signed)."""
        return _sealed(request, uid, seal_launch_context)

    @Operation(body=bytes, answer="application/octet-stream", problems=(401,))
    def get_gang(self, request: Request, uid: UUID) -> HttpResponse:
        """Return the sealed addresses of the members of an attempt's gang (cells only, signed)."""
        return _sealed(request, uid, seal_gang)


def _sealed(request: Request, uid: UUID, seal: Callable[..., bytes]) -> HttpResponse:
    cell, key = check_cell(request, uid)
    content = seal(cell=cell, key=key, uid=uid, mac=request.headers[_MAC])
    return HttpResponse(content, content_type="application/octet-stream")
