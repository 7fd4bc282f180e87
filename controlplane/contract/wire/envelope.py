"""The envelope of every message: cell, incarnation, number, MAC. Its format never changes.

From version 2 on, payloads with content of jobs are sealed: all orders, and reports of cells.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

from controlplane.contract.codec import Document, Key, MalformedMessage, Text, compact_json
from controlplane.contract.wire import keys, sealing

VERSION = 2
SEALED_SINCE = 2
"""The first version that can read sealed payloads."""
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

    def check(self, *valid: bytes) -> int:
        """Return the position of the key among `valid` that signed the message. Raise BadMac."""
        text = self._signed_text()
        for position, key in enumerate(valid):
            if keys.is_signed(key, text, self.mac):
                return position
        raise BadMac(f"bad MAC on a message of cell {self.cell!r}")

    def content(self, seal_key: bytes | None = None) -> dict[str, Any]:
        """Return the decoded payload; `seal_key` opens a sealed one. Raise MalformedMessage."""
        payload = self.payload
        if seal_key is not None and payload.startswith(sealing.PREFIX):
            about = _about(self.cell, self.incarnation, self.seq)
            payload = sealing.open_payload(seal_key, payload, about=about)
        return _decode(payload, "the payload is not a JSON object")


@dataclass(frozen=True, slots=True)
class Seal:
    """The key that seals one payload, and its nonce: 12 random bytes."""

    key: bytes = field(repr=False)
    nonce: bytes


def seal(
    key: bytes,
    *,
    cell: str,
    incarnation: str,
    seq: int,
    body: dict[str, Any],
    payload_seal: Seal | None = None,
    version: int = VERSION,
) -> str:
    """Return the text of an envelope around `body`, signed with `key`.

    `payload_seal`: seals the payload; without it, every reader of the broker can read the body.
    """
    payload = compact_json(body)
    if payload_seal is not None:
        about = _about(cell, incarnation, seq)
        payload = sealing.seal_payload(
            payload_seal.key, payload, about=about, nonce=payload_seal.nonce
        )
    mac = keys.sign(key, f"{version}\n{cell}\n{incarnation}\n{seq}\n{payload}")
    head = {"v": version, "cell": cell, "inc": incarnation, "seq": seq, "mac": mac}
    return compact_json({**head, "payload": payload})


def _about(cell: str, incarnation: str, seq: int) -> str:
    """Return the context to which a sealed payload is bound."""
    return f"{cell}\n{incarnation}\n{seq}"


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
