"""Texts of probes, with a MAC: cells can add messages to the inbox, and must not forge a probe.

A returned probe proves that the heartbeats before it were applied. With a forged one ahead of the
heartbeats of other cells, a flood of one cell would make the others LOST.
"""

import json
from collections.abc import Iterable
from functools import lru_cache

from controlplane.contract.codec import MalformedMessage
from controlplane.contract.wire import keys
from controlplane.contract.wire.envelope import BadMac
from controlplane.contract.wire.queues import INBOX_SHARDS

_INFO = b"cellrun probes"
_BEGINNING = '{"probe"'
_MAX_CHARS = 128


def probe_text(secret_key: str, shard: int) -> str:
    """Return the text of a probe through a shard, signed with a key of this installation."""
    mac = keys.sign(_probe_key(secret_key), _signed_text(shard))
    return json.dumps({"probe": shard, "mac": mac})


def read_probe(secret_keys: Iterable[str], text: str) -> int | None:
    """Return the shard of a probe, or None if the text is none.

    `secret_keys`: the present CELLRUN_SECRET_KEY and former ones. Raise MalformedMessage, BadMac.
    """
    if len(text) > _MAX_CHARS or not text.startswith(_BEGINNING):
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise MalformedMessage("not a probe") from error
    shard, mac = found["probe"], found.get("mac")
    if isinstance(shard, bool) or not isinstance(shard, int) or not 0 <= shard < INBOX_SHARDS:
        raise MalformedMessage("not a probe of a known shard")
    signed = _signed_text(shard)
    is_own = isinstance(mac, str) and any(
        keys.is_signed(_probe_key(key), signed, mac) for key in secret_keys
    )
    if not is_own:
        raise BadMac(f"bad MAC on a probe of shard {shard}")
    return shard


@lru_cache(maxsize=16)
def _probe_key(secret_key: str) -> bytes:
    return keys.derive_key(secret_key.encode(), salt=b"cellrun", info=_INFO)


def _signed_text(shard: int) -> str:
    return f"probe\n{shard}"
