"""Requests that upload output to the control plane, signed by their cell."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import requests

from controlplane.contract.output_batch import (
    OutputPiece,
    PieceResult,
    pack_pieces,
    read_result,
    read_results,
)
from controlplane.contract.wire import keys
from workers.signatures import signed_headers

HTTP_SECONDS = (3.05, 10.0)
STORED = (200, 409, 404, 410)
"""Statuses that say what became of a piece; all others mean that it is sent again."""
TEMPORARY = (401, 408, 429)
"""Refusals below 500 that the same request may not get later."""


class UploadDeferred(Exception):
    """Output was not stored, and is sent again later."""


class NoResponse(UploadDeferred):
    """The control plane did not answer: other output waits as well."""


class BatchRefused(Exception):
    """The control plane does not accept this request, now or later."""


class UploadClient:
    """Sends pieces of output, one alone or those of several attempts in one request."""

    def __init__(
        self, *, control_url: str, cell: str, key: bytes, now: Callable[[], float]
    ) -> None:
        """Create a client. `key`: that of the cell; `now`: seconds since 1970."""
        self._url = control_url
        self._cell = cell
        self._key = keys.mac_key(key, keys.UPLOAD)
        self._now = now
        self._session = requests.Session()
        # No proxy and no netrc between a cell and its control plane.
        self._session.trust_env = False
        adapter = requests.adapters.HTTPAdapter(pool_maxsize=16)
        self._session.mount(control_url or "http://", adapter)

    def put(self, piece: OutputPiece, seconds: float) -> PieceResult:
        """Upload one piece in about `seconds` at most. Raise UploadDeferred."""
        path = f"/api/v1/attempts/{piece.uid}/logs/{piece.stream}?offset={piece.offset}"
        timeout = (min(HTTP_SECONDS[0], seconds), min(HTTP_SECONDS[1], seconds))
        response = self._send("PUT", path, piece.content, timeout)
        if response.status_code not in STORED:
            raise UploadDeferred(f"HTTP status {response.status_code} for attempt {piece.uid}")
        if response.status_code in (404, 410):
            return PieceResult(response.status_code)
        with _reading_answer():
            document = response.json()
            size = document.get("size") if isinstance(document, dict) else None
            return read_result({"status": response.status_code, "size": size})

    def post(self, pieces: Sequence[OutputPiece]) -> list[PieceResult]:
        """Upload pieces of several attempts. Raise UploadDeferred, BatchRefused."""
        response = self._send("POST", "/api/v1/logs:batch", pack_pieces(pieces), HTTP_SECONDS)
        status = response.status_code
        if 400 <= status < 500 and status not in TEMPORARY:
            raise BatchRefused(f"HTTP status {status} for {len(pieces)} pieces")
        if status != 200:
            raise UploadDeferred(f"HTTP status {status} for {len(pieces)} pieces")
        with _reading_answer():
            return read_results(response.json(), len(pieces))

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def _send(
        self, method: str, path: str, body: bytes, timeout: tuple[float, float]
    ) -> requests.Response:
        url = f"{self._url}{path}"
        headers = signed_headers(self._key, self._cell, url, body, int(self._now()))
        try:
            return self._session.request(
                method, url, data=body, headers=headers, timeout=timeout, allow_redirects=False
            )
        except requests.RequestException as error:
            raise NoResponse(str(error)) from error


@contextmanager
def _reading_answer() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise UploadDeferred(f"an answer that cannot be read: {error}") from error
