"""The briefing of an attempt, sealed for the cell that runs it."""

import os
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from controlplane.contract import keys
from controlplane.contract.fields import compact_json
from controlplane.domain.sealing import NONCE_BYTES, seal
from controlplane.queries.attempts import find_uploader
from controlplane.queries.briefing import load_briefing


def seal_briefing(*, cell: str, uid: UUID) -> bytes:
    """The briefing of attempt `uid` of `cell`, whose signature was checked. Raises NotFound."""
    return seal_for(cell=cell, uid=uid, body=load_briefing(uid).body())


def seal_for(*, cell: str, uid: UUID, body: Mapping[str, Any]) -> bytes:
    """`body` as JSON, sealed as an answer to a question of `cell` about its attempt `uid`."""
    uploader = find_uploader(cell, uid)
    assert uploader is not None, "the request was checked"
    key = keys.mac_key(uploader.key, keys.SEAL)
    return seal(
        key, compact_json(body).encode(), about=f"{cell} {uid}", nonce=os.urandom(NONCE_BYTES)
    )
