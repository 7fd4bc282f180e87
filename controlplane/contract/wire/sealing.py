"""Payloads that only a cell and the control plane can read: ChaCha20-Poly1305 (RFC 8439).

A sealed payload is a text, so that the envelope around it keeps its format. The nonce is random:
after 2^36 messages under one key, the probability of a repeated nonce is 2^-25.
"""

import base64
import binascii
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from controlplane.contract.codec import MalformedMessage

NONCE_BYTES = 12
PREFIX = "sealed:"
"""The beginning of a sealed payload; that of a plain one is a brace."""


class BadSeal(MalformedMessage):
    """The payload was sealed with another key or for another message, or was changed."""


def seal_payload(key: bytes, payload: str, *, about: str, nonce: bytes) -> str:
    """Return `payload` sealed with `key` and bound to `about`; `nonce`: 12 random bytes."""
    sealed = _cipher(key).encrypt(nonce, payload.encode("utf-8", "surrogatepass"), about.encode())
    return PREFIX + base64.b64encode(nonce + sealed).decode()


def open_payload(key: bytes, text: str, *, about: str) -> str:
    """Return the payload that `seal_payload` sealed. Raise BadSeal."""
    try:
        sealed = base64.b64decode(text.removeprefix(PREFIX), validate=True)
        nonce, rest = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
        return _cipher(key).decrypt(nonce, rest, about.encode()).decode("utf-8", "surrogatepass")
    except (InvalidTag, binascii.Error, ValueError) as error:
        raise BadSeal("the payload was not sealed with this key, or was changed") from error


# A cipher of one key is used for every message of a cell, and making one costs more than sealing.
@lru_cache(maxsize=16_384)
def _cipher(key: bytes) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(key)
