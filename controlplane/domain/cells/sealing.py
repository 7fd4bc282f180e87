"""Authenticated encryption of values for the control plane or one cell.

Values are sealed by ChaCha20-Poly1305 (RFC 8439) with keys derived by HKDF. A sealed value is bound
to its context (`about`, the associated data) and cannot be opened in another one.
"""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from controlplane.contract.wire import keys

NONCE_BYTES = 12
_AT_REST = b"cellrun secrets at rest"


class NotOpened(Exception):
    """The value was sealed with another key or for another context, or was changed."""


def rest_key(secret_key: str) -> bytes:
    """Return the key for sealed values in the database."""
    return keys.derive_key(secret_key.encode(), salt=b"cellrun", info=_AT_REST)


def seal(key: bytes, value: bytes, *, about: str, nonce: bytes) -> bytes:
    """Return `value` sealed with `key` (32 bytes); `nonce`: 12 bytes, unique for that key."""
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, value, about.encode())


def unseal(key: bytes, sealed: bytes, *, about: str) -> bytes:
    """Return the value that `seal` sealed. Raise NotOpened."""
    nonce, rest = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
    try:
        return ChaCha20Poly1305(key).decrypt(nonce, rest, about.encode())
    except (InvalidTag, ValueError) as error:
        raise NotOpened(
            "the value was not sealed with this key for this use, or was changed"
        ) from error
