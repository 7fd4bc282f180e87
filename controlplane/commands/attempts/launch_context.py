"""Launch context and gang of an attempt, sealed for the cell that runs it."""

import os
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db import transaction

from controlplane.commands.audit import Action, AuditEntry, Via, record
from controlplane.contract.codec import compact_json
from controlplane.contract.wire import keys
from controlplane.domain.cells.sealing import NONCE_BYTES, seal
from controlplane.domain.errors import NotFound
from controlplane.queries.attempts.gang import find_gang_of, load_gang
from controlplane.queries.attempts.launch_context import (
    find_revealed_secrets,
    load_launch_context,
    load_recorded_uses,
)
from controlplane.queries.views.attempts import find_uploader


def seal_launch_context(*, cell: str, key: bytes, uid: UUID, mac: str) -> bytes:
    """Return the launch context of attempt `uid` of `cell`, sealed. Raise NotFound.

    `key`, `mac`: of the request, whose signature was verified; the response is bound to both.
    """
    context = load_launch_context(uid)
    sealed = _seal(cell, key, uid, "briefing", mac, context.body())
    used = find_revealed_secrets(uid, context)
    if used is not None:
        text = f"by attempt {uid} of job {used.job_id}"
        # A cell may fetch the same context again and again: the log must not grow with it.
        recorded = load_recorded_uses(cell=cell, text=text, since=used.since)
        entries = [
            AuditEntry(Action.USE_SECRET, subject, text, project_id=used.project_id)
            for subject in (f"secret {name}" for name in used.names)
            if subject not in recorded
        ]
        if entries:
            with transaction.atomic():
                record(*entries, actor=cell, via=Via.CELL)
    return sealed


def seal_gang(*, cell: str, key: bytes, uid: UUID, mac: str) -> bytes:
    """Return the gang of attempt `uid` as its members receive it, sealed. Raise NotFound."""
    return _seal(cell, key, uid, "gang", mac, load_gang(find_gang_of(uid)).body())


def _seal(
    cell: str, key: bytes, uid: UUID, endpoint: str, mac: str, body: Mapping[str, Any]
) -> bytes:
    uploader = find_uploader(cell, uid)
    if uploader is None or key not in uploader.keys:  # since the request was checked
        raise NotFound(f"there is no cell {cell} with this key")
    seal_key = keys.mac_key(key, keys.SEAL)
    about = keys.about_answer(cell=cell, attempt=str(uid), endpoint=endpoint, mac=mac)
    return seal(seal_key, compact_json(body).encode(), about=about, nonce=os.urandom(NONCE_BYTES))
