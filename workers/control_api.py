"""Requests of a cell to the control plane's web process, signed with the cell's key."""

import json
from collections.abc import Callable, Mapping
from uuid import UUID

import requests
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from controlplane.contract.artifacts import STORED_BYTES
from controlplane.contract.messages.launch_context import LaunchContext
from controlplane.contract.wire import keys
from workers import clock
from workers.signatures import signed_headers

CONNECT_SECONDS = 3.05
HTTP_SECONDS = 10.0
NO_ATTEMPT = UUID(int=0)
_NONCE_BYTES = 12
_POOL = 16


class ControlPlaneUnavailable(Exception):
    """Web did not answer, or answered with an error: the request may be repeated."""


class ControlPlaneRefused(Exception):
    """Web refused the request permanently: unknown or ended attempt, too large a body, no space."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Web:
    """A client of web for all threads of a cell."""

    def __init__(
        self,
        *,
        control_url: str,
        cell: str,
        key: bytes,
        now: Callable[[], float] = clock.wall_seconds,
    ) -> None:
        """Create a client; with an empty `control_url` each call raises ControlPlaneUnavailable."""
        self._url = control_url
        self._cell = cell
        self._mac_key = keys.mac_key(key, keys.UPLOAD)
        self._seal_key = keys.mac_key(key, keys.SEAL)
        self._now = now
        self._session = requests.Session()
        # Ignores proxy settings and netrc.
        self._session.trust_env = False
        adapter = requests.adapters.HTTPAdapter(pool_maxsize=_POOL)
        self._session.mount(control_url or "http://", adapter)

    def launch_context(self, uid: str) -> LaunchContext:
        """Fetch the launch context. Raise ControlPlaneUnavailable, ControlPlaneRefused."""
        return LaunchContext.read(self.fetch(uid, "briefing"))

    def fetch(self, uid: str, what: str, body: bytes = b"") -> object:
        """Return the decrypted JSON response to a request about an attempt.

        Raise ControlPlaneUnavailable, ControlPlaneRefused.
        """
        path = f"/api/v1/attempts/{uid}/{what}"
        headers = self._headers(path, body)
        sealed = self._send("POST", path, body, headers, HTTP_SECONDS)
        about = keys.about_answer(
            cell=self._cell, attempt=uid, endpoint=what, mac=headers["X-Cellrun-Mac"]
        )
        try:
            text = ChaCha20Poly1305(self._seal_key).decrypt(
                sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], about.encode()
            )
            found: object = json.loads(text)
        except (InvalidTag, ValueError) as error:
            raise ControlPlaneUnavailable(
                f"its answer was not sealed for this cell: {error!r}"
            ) from error
        return found

    def call(self, method: str, path: str, body: bytes, seconds: float = HTTP_SECONDS) -> bytes:
        """Return the body of the response to a signed request, within `seconds`.

        Raise ControlPlaneUnavailable, ControlPlaneRefused.
        """
        return self._send(method, path, body, self._headers(path, body), seconds)

    def check_key(self) -> None:
        """Check that web accepts the key. Raise ControlPlaneUnavailable, ControlPlaneRefused."""
        try:
            self.fetch(str(NO_ATTEMPT), "briefing")
        except ControlPlaneRefused as error:
            if error.status != 404:  # the signature is valid, and the attempt does not exist
                raise

    def sign_link(self, url: str) -> dict[str, str]:
        """Return the headers with which the cell uses a link of the control plane."""
        return signed_headers(self._mac_key, self._cell, url, b"", int(self._now()))

    def _headers(self, path: str, body: bytes) -> dict[str, str]:
        url, at = self._url + path, int(self._now())
        return signed_headers(self._mac_key, self._cell, url, body, at)

    def _send(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], seconds: float
    ) -> bytes:
        if not self._url:
            raise ControlPlaneUnavailable("this cell has no URL of web")
        url = self._url + path
        try:
            answer = self._session.request(
                method,
                url,
                data=body,
                headers=headers,
                timeout=(CONNECT_SECONDS, seconds),
                allow_redirects=False,
            )
        except requests.RequestException as error:
            raise ControlPlaneUnavailable(str(error)) from error
        is_final = answer.status_code in (400, 404, 409, 410, 413)
        if is_final or (answer.status_code == 507 and _code(answer) == STORED_BYTES):
            message = f"HTTP status {answer.status_code}: {_error_detail(answer)}"
            raise ControlPlaneRefused(message, answer.status_code)
        if answer.status_code != 200:
            raise ControlPlaneUnavailable(
                f"HTTP status {answer.status_code}: {_error_detail(answer)}"
            )
        return answer.content

    def close(self) -> None:
        """Close connections."""
        self._session.close()


def _code(answer: requests.Response) -> object:
    """Return the `code` of a problem document, if it has one."""
    try:
        return answer.json().get("code")
    except (ValueError, AttributeError):
        return None


def _error_detail(answer: requests.Response) -> str:
    try:
        return str(answer.json().get("detail", ""))[:500]
    except (ValueError, AttributeError):
        return ""
