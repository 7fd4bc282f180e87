"""The token with which a host joins as a cell: name, key and broker's address in one word.

A token gives the cell's key and the broker's password.
"""

import base64
import binascii
import json
from dataclasses import dataclass, field

from controlplane.contract.wire import keys

PREFIX = "crj_"


class MalformedToken(ValueError):
    """The text is not a join token, or only a part of one."""


@dataclass(frozen=True, slots=True)
class JoinToken:
    """What a host needs besides the address of web. `broker_url`: as this cell reaches Redis."""

    cell: str
    key: bytes = field(repr=False)
    broker_url: str = field(repr=False)

    def encode(self) -> str:
        """Return the token as one word."""
        body = {"cell": self.cell, "key": keys.encode_key(self.key), "broker": self.broker_url}
        text = json.dumps(body, separators=(",", ":"))
        return PREFIX + base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> "JoinToken":
        """Read a token. Raise MalformedToken, which does not repeat the text."""
        word = text.strip()
        if not word.startswith(PREFIX):
            raise MalformedToken(f"a join token starts with {PREFIX}")
        encoded = word.removeprefix(PREFIX)
        try:
            padded = encoded + "=" * (-len(encoded) % 4)
            body = json.loads(base64.b64decode(padded.encode("ascii"), b"-_", validate=True))
            cell, key, broker = body["cell"], body["key"], body["broker"]
            if not all(isinstance(part, str) and part for part in (cell, key, broker)):
                raise MalformedToken("a part of the join token is missing")
            return cls(cell, keys.decode_key(key), broker)
        except MalformedToken:
            raise
        except (binascii.Error, ValueError, KeyError, TypeError):
            raise MalformedToken("the join token is incomplete or damaged") from None
