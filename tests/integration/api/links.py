"""Use of the signed links of cells."""

import hashlib
from urllib.parse import urlsplit

from controlplane import clock
from controlplane.contract.wire import keys
from controlplane.models import Cell
from controlplane.queries.cells.keys import key_of
from tests.integration.api.conftest import Answer, Caller


def use_link(link: str, cell: Cell, *, key: bytes | None = None) -> Answer:
    """Return the answer to a cell that uses a link; `key`: by default its own."""
    parts = urlsplit(link)
    path, at = f"{parts.path}?{parts.query}", str(int(clock.now().timestamp()))
    text = f"{cell.name}\n{at}\n{path}\n{hashlib.sha256().hexdigest()}"
    headers = {
        "X-Cellrun-Cell": cell.name,
        "X-Cellrun-Time": at,
        "X-Cellrun-Mac": keys.sign(keys.mac_key(key or key_of(cell), keys.UPLOAD), text),
    }
    return Caller(None).send("GET", path.removeprefix("/api/v1"), **headers)
