"""Sign HTTP requests of a cell to the control plane."""

import hashlib
from urllib.parse import urlsplit

from controlplane.contract.wire import keys


def signed_headers(key: bytes, cell: str, url: str, body: bytes, at: int) -> dict[str, str]:
    """Return headers that authenticate a request of `cell` with `body` to `url`."""
    parts = urlsplit(url)
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    digest = hashlib.sha256(body).hexdigest()
    return {
        "Content-Type": "application/octet-stream",
        "X-Cellrun-Cell": cell,
        "X-Cellrun-Time": str(at),
        "X-Cellrun-Mac": keys.sign(key, f"{cell}\n{at}\n{path}\n{digest}"),
    }
