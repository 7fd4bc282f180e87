"""Time-based codes of a second factor (RFC 6238), and recovery codes.

Codes have six digits, last 30 seconds and use SHA-1: authenticator apps support nothing else
reliably, and HMAC-SHA-1 is sound for this use.
"""

import base64
import hashlib
import re

from cryptography.hazmat.primitives.constant_time import bytes_eq
from cryptography.hazmat.primitives.hashes import SHA1
from cryptography.hazmat.primitives.twofactor.totp import TOTP

KEY_BYTES = 20
"""160 bits, as RFC 4226 recommends."""

STEP_SECONDS = 30
DIGITS = 6
STEPS_OF_SKEW = 1
"""By how many steps the clock of the app may differ."""

RECOVERY_CODES = 10
RECOVERY_BYTES = 10
"""80 bits: too many to try, so that a plain hash protects them."""


def find_step(key: bytes, code: str, *, now: float) -> int | None:
    """Return the step of time for which `code` is valid at `now` (seconds); None if it is wrong."""
    present = int(now // STEP_SECONDS)
    totp = _totp(key)
    for step in range(present - STEPS_OF_SKEW, present + STEPS_OF_SKEW + 1):
        if step >= 0 and bytes_eq(totp.generate(step * STEP_SECONDS), code.encode()):
            return step
    return None


def is_totp(code: str) -> bool:
    """Return whether a normalized code has the form of a time-based one."""
    return re.fullmatch(rf"[0-9]{{{DIGITS}}}", code) is not None


def normalize_code(text: str) -> str:
    """Return a typed code without spaces and hyphens."""
    return re.sub(r"[\s-]+", "", text).lower()


def provisioning_uri(key: bytes, *, account: str, issuer: str) -> str:
    """Return the address that authenticator apps read from a QR code."""
    return _totp(key).get_provisioning_uri(account, issuer)


def readable_key(key: bytes) -> str:
    """Return the key for typing: base32 in groups of four characters."""
    return _grouped(base64.b32encode(key).decode(), " ")


def recovery_code(value: bytes) -> str:
    """Return random bytes as a recovery code."""
    return _grouped(base64.b32encode(value).decode().lower(), "-")


def recovery_digest(code: str) -> str:
    """Return what is stored of a recovery code."""
    return hashlib.sha256(normalize_code(code).encode()).hexdigest()


def about_totp(user_id: int) -> str:
    """Return the context to which a sealed key is bound."""
    return f"totp {user_id}"


def _totp(key: bytes) -> TOTP:
    return TOTP(key, DIGITS, SHA1(), STEP_SECONDS)


def _grouped(text: str, separator: str) -> str:
    return separator.join(text[at : at + 4] for at in range(0, len(text), 4))
