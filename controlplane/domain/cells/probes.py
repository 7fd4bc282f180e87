"""Texts of probes, with a MAC: cells can add messages to the inbox, and must not forge a probe.

A returned probe proves that what was sent before it was applied. With a forged one ahead of the
heartbeats of other cells, a flood of one cell would make the others LOST. The time of sending is in
the text: after an outage of the inbox, a probe from before it comes first, and proves nothing about
the heartbeats that wait behind it.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from controlplane.contract.codec import MalformedMessage
from controlplane.contract.wire import keys
from controlplane.contract.wire.envelope import BadMac
from controlplane.contract.wire.queues import INBOX_SHARDS

_INFO = b"cellrun probes"
_BEGINNING = '{"probe"'
_MAX_CHARS = 192


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe that was sent through a shard."""

    shard: int
    sent_at: datetime


def probe_text(secret_key: str, probe: Probe) -> str:
    """Return the text of a probe, signed with a key of this installation."""
    sent_at = probe.sent_at.isoformat()
    mac = keys.sign(_probe_key(secret_key), _signed_text(probe.shard, sent_at))
    return json.dumps({"probe": probe.shard, "at": sent_at, "mac": mac})


def read_probe(secret_keys: Iterable[str], text: str) -> Probe | None:
    """Return a probe, or None if the text is none.

    `secret_keys`: the present CELLRUN_SECRET_KEY and former ones. Raise MalformedMessage, BadMac.
    """
    if len(text) > _MAX_CHARS or not text.startswith(_BEGINNING):
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise MalformedMessage("not a probe") from error
    shard, sent_at, mac = found["probe"], found.get("at"), found.get("mac")
    if isinstance(shard, bool) or not isinstance(shard, int) or not 0 <= shard < INBOX_SHARDS:
        raise MalformedMessage("not a probe of a known shard")
    if not isinstance(sent_at, str):
        raise MalformedMessage("a probe without the time of sending")
    signed = _signed_text(shard, sent_at)
    is_own = isinstance(mac, str) and any(
        keys.is_signed(_probe_key(key), signed, mac) for key in secret_keys
    )
    if not is_own:
        raise BadMac(f"bad MAC on a probe of shard {shard}")
    return Probe(shard, datetime.fromisoformat(sent_at))


@lru_cache(maxsize=16)
def _probe_key(secret_key: str) -> bytes:
    return keys.derive_key(secret_key.encode(), salt=b"cellrun", info=_INFO)


def _signed_text(shard: int, sent_at: str) -> str:
    return f"probe\n{shard}\n{sent_at}"
