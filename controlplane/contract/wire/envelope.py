"""The envelope of every message: cell, incarnation, number, MAC. Its format never changes."""

import json
import re
from dataclasses import dataclass
from typing import Annotated, Any, Self

from controlplane.contract.codec import Document, Key, MalformedMessage, Text, compact_json
from controlplane.contract.wire import keys

VERSION = 1
MAX_BYTES = 1 << 20  # maximum of any message; an order message is at most 64 KiB
_MAC = re.compile("[0-9a-f]{64}")  # HMAC-SHA256 in lowercase hex, as `keys.sign` writes it


class BadMac(MalformedMessage):
    """The MAC does not match the expected key."""


@dataclass(frozen=True, slots=True)
class Envelope(Document):
    """One message in transit.

    `seq` increases within an incarnation; it is 0 in messages from the control plane to a cell.
    """

    version: Annotated[int, Key("v")]
    cell: Annotated[str, Text(63)]
    incarnation: Annotated[str, Key("inc"), Text(64)]
    seq: int
    mac: str
    payload: str

    def checked(self) -> Self:
        """Validate the version and the format of the MAC."""
        if self.version not in (VERSION, VERSION - 1):
            raise MalformedMessage(f"version {self.version} is not supported")
        if not _MAC.fullmatch(self.mac):
            raise MalformedMessage("is not 64 hex digits", "mac")
        return self

    def _signed_text(self) -> str:
        return f"{self.version}\n{self.cell}\n{self.incarnation}\n{self.seq}\n{self.payload}"

    def check(self, key: bytes) -> None:
        """Check the MAC with `key`. Raise BadMac."""
        if not keys.is_signed(key, self._signed_text(), self.mac):
            raise BadMac(f"bad MAC on a message of cell {self.cell!r}")

    def content(self) -> dict[str, Any]:
        """Return the decoded payload. Raise MalformedMessage."""
        return _decode(self.payload, "the payload is not a JSON object")


def seal(key: bytes, *, cell: str, incarnation: str, seq: int, body: dict[str, Any]) -> str:
    """Return the text of an envelope around `body`, signed with `key`."""
    payload = compact_json(body)
    mac = keys.sign(key, f"{VERSION}\n{cell}\n{incarnation}\n{seq}\n{payload}")
    head = {"v": VERSION, "cell": cell, "inc": incarnation, "seq": seq, "mac": mac}
    return compact_json({**head, "payload": payload})


def parse(raw: str | bytes) -> Envelope:
    """Return the envelope from `raw` without checking its MAC. Raise MalformedMessage."""
    if len(raw) > MAX_BYTES:
        raise MalformedMessage(f"a message of {len(raw)} bytes exceeds the limit of {MAX_BYTES}")
    return Envelope.read(_decode(raw, "not a JSON object"))


def _decode(text: str | bytes, error: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise MalformedMessage(error) from cause
    if not isinstance(body, dict):
        raise MalformedMessage(error)
    return body
