"""Launch context and gang of an attempt, sealed for the cell that runs it."""

import os
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from controlplane.contract.codec import compact_json
from controlplane.contract.wire import keys
from controlplane.domain.cells.sealing import NONCE_BYTES, seal
from controlplane.domain.errors import NotFound
from controlplane.queries.attempts.gang import find_gang_of, load_gang
from controlplane.queries.attempts.launch_context import load_launch_context
from controlplane.queries.views.attempts import find_uploader


def seal_launch_context(*, cell: str, uid: UUID, mac: str) -> bytes:
    """Return the launch context of attempt `uid` of `cell`, sealed. Raise NotFound.

    `mac`: of the request, whose signature was verified; the response is bound to it.
    """
    return _seal(cell, uid, "briefing", mac, load_launch_context(uid).body())


def seal_gang(*, cell: str, uid: UUID, mac: str) -> bytes:
    """Return the gang of attempt `uid` as its members receive it, sealed. Raise NotFound."""
    return _seal(cell, uid, "gang", mac, load_gang(find_gang_of(uid)).body())


def _seal(cell: str, uid: UUID, endpoint: str, mac: str, body: Mapping[str, Any]) -> bytes:
    uploader = find_uploader(cell, uid)
    if uploader is None:  # revoked since the request was checked
        raise NotFound(f"there is no cell {cell}")
    key = keys.mac_key(uploader.key, keys.SEAL)
    about = keys.about_answer(cell=cell, attempt=str(uid), endpoint=endpoint, mac=mac)
    return seal(key, compact_json(body).encode(), about=about, nonce=os.urandom(NONCE_BYTES))
