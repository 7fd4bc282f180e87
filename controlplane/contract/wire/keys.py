"""Keys of one cell, derived from its secret: one per direction, which prevents reflection."""

import base64
import binascii
import hashlib
import hmac
from functools import lru_cache

KEY_BYTES = 32
TO_CONTROL = b"cellrun mac: cell to control plane"
TO_CELL = b"cellrun mac: control plane to cell"
UPLOAD = b"cellrun mac: upload"
SEAL = b"cellrun seal: control plane to cell"
SEAL_ORDERS = b"cellrun seal: orders"
SEAL_REPORTS = b"cellrun seal: reports"
REDIS = b"cellrun password: redis"


class MalformedKey(ValueError):
    """The text is not a cell key as `manage.py enroll_cell` prints it."""


def derive_key(secret: bytes, *, salt: bytes, info: bytes) -> bytes:
    """Return 32 bytes of HKDF-SHA256 (RFC 5869) of `secret`."""
    extracted = hmac.new(salt, secret, hashlib.sha256).digest()
    return hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()


@lru_cache(maxsize=16_384)
def mac_key(cell_key: bytes, direction: bytes) -> bytes:
    """Return the key for one use: TO_CONTROL, TO_CELL, UPLOAD, a SEAL or REDIS."""
    return derive_key(cell_key, salt=b"cellrun", info=direction)


def about_answer(*, cell: str, attempt: str, endpoint: str, mac: str) -> str:
    """Return the context to which a sealed response to a cell is bound. `mac`: of the request."""
    return f"{cell} {attempt} {endpoint} {mac}"


def encode_key(cell_key: bytes) -> str:
    """Return the text form of a cell key for printing and key files."""
    return base64.urlsafe_b64encode(cell_key).decode()


def decode_key(text: str) -> bytes:
    """Return the cell key from its text form. Raise MalformedKey."""
    try:
        key = base64.b64decode(text.strip().encode(), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedKey("a cell key is 44 characters of URL-safe base64") from error
    if len(key) != KEY_BYTES:
        raise MalformedKey(f"a cell key is {KEY_BYTES} bytes, this one has {len(key)}")
    return key


def sign(key: bytes, text: str) -> str:
    """Return the MAC of `text` in hex."""
    return hmac.new(key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def is_signed(key: bytes, text: str, mac: str) -> bool:
    """Return whether `mac` is the MAC of `text`, compared in constant time."""
    # `compare_digest` raises TypeError for a text that is not ASCII.
    mac_bytes = mac.encode("utf-8", "surrogatepass")
    return hmac.compare_digest(sign(key, text).encode(), mac_bytes)
