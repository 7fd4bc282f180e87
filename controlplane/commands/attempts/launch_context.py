"""The briefing of an attempt, sealed for the cell that runs it."""

import os
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from controlplane.contract.codec import compact_json
from controlplane.contract.wire import keys
from controlplane.domain.cells.sealing import NONCE_BYTES, seal
from controlplane.queries.attempts.launch_context import load_briefing
from controlplane.queries.views.attempts import find_uploader


def seal_briefing(*, cell: str, uid: UUID, mac: str) -> bytes:
    """The briefing of attempt `uid` of `cell`, whose signature was checked. Raises NotFound."""
    body = load_briefing(uid).body()
    return seal_for(cell=cell, uid=uid, door="briefing", mac=mac, body=body)


def seal_for(*, cell: str, uid: UUID, door: str, mac: str, body: Mapping[str, Any]) -> bytes:
    """`body` as JSON, sealed as the answer of `door` to `cell` about its attempt `uid`.

    `mac`: of the request that asked; the answer to another one does not pass for it.
    """
    uploader = find_uploader(cell, uid)
    assert uploader is not None, "the request was checked"
    key = keys.mac_key(uploader.key, keys.SEAL)
    about = keys.about_answer(cell=cell, attempt=str(uid), door=door, mac=mac)
    return seal(key, compact_json(body).encode(), about=about, nonce=os.urandom(NONCE_BYTES))
