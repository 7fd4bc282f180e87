"""The envelope of every message: cell, incarnation, number, MAC. Its format never changes."""

import json
import re
from dataclasses import dataclass
from typing import Any

from controlplane.contract.fields import MalformedMessage, as_object, compact_json, text, whole
from controlplane.contract.wire import keys

VERSION = 1
MAX_BYTES = 1 << 20  # no message of either side is larger; an order message is at most 64 KiB
_MAC = re.compile("[0-9a-f]{64}")  # HMAC-SHA256 in lowercase hex, as `keys.sign` writes it


class BadMac(MalformedMessage):
    """The MAC does not match the expected key."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message in transit.

    `seq` increases within an incarnation; it is 0 in messages from the control plane to a cell.
    """

    version: int
    cell: str
    incarnation: str
    seq: int
    mac: str
    payload: str

    def _signed_text(self) -> str:
        return f"{self.version}\n{self.cell}\n{self.incarnation}\n{self.seq}\n{self.payload}"

    def check(self, key: bytes) -> None:
        """Check the MAC with `key`. Raise BadMac."""
        if not keys.is_signed(key, self._signed_text(), self.mac):
            raise BadMac(f"bad MAC on a message of cell {self.cell!r}")

    def body(self) -> dict[str, Any]:
        """Return the decoded payload. Raise MalformedMessage."""
        try:
            return dict(as_object(json.loads(self.payload)))
        except (ValueError, RecursionError) as error:
            raise MalformedMessage("the payload is not a JSON object") from error


def seal(key: bytes, *, cell: str, incarnation: str, seq: int, body: dict[str, Any]) -> str:
    """Return the text of an envelope around `body`, signed with `key`."""
    payload = compact_json(body)
    mac = keys.sign(key, f"{VERSION}\n{cell}\n{incarnation}\n{seq}\n{payload}")
    head = {"v": VERSION, "cell": cell, "inc": incarnation, "seq": seq, "mac": mac}
    return compact_json({**head, "payload": payload})


def parse(raw: str | bytes) -> Envelope:
    """Return the envelope in `raw` without checking its MAC. Raise MalformedMessage."""
    if len(raw) > MAX_BYTES:
        raise MalformedMessage(f"a message of {len(raw)} bytes is over the limit of {MAX_BYTES}")
    try:
        head = as_object(json.loads(raw))
    except (ValueError, RecursionError) as error:
        raise MalformedMessage("not a JSON object") from error
    version = whole(head, "v")
    if version not in (VERSION, VERSION - 1):
        raise MalformedMessage(f"version {version} is not supported")
    mac = text(head, "mac", limit=65)
    if not _MAC.fullmatch(mac):
        raise MalformedMessage("mac is not 64 hex digits")
    payload = head.get("payload")
    if not isinstance(payload, str):
        raise MalformedMessage("payload is not str")
    return Envelope(
        version=version,
        cell=text(head, "cell", limit=63),
        incarnation=text(head, "inc", limit=64),
        seq=whole(head, "seq"),
        mac=mac,
        payload=payload,
    )
