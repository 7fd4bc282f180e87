"""The briefing of an attempt, sealed for the cell that runs it."""

import os
from uuid import UUID

from controlplane.contract import keys
from controlplane.contract.fields import compact_json
from controlplane.domain.sealing import NONCE_BYTES, seal
from controlplane.queries.attempts import find_uploader
from controlplane.queries.briefing import load_briefing


def seal_briefing(*, cell: str, uid: UUID) -> bytes:
    """The briefing of attempt `uid` of `cell`, whose signature was checked. Raises NotFound."""
    text = compact_json(load_briefing(uid).body())
    uploader = find_uploader(cell, uid)
    assert uploader is not None, "the request was checked"
    key = keys.mac_key(uploader.key, keys.SEAL)
    return seal(key, text.encode(), about=f"{cell} {uid}", nonce=os.urandom(NONCE_BYTES))
