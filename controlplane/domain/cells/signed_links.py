"""Signed links, which authorize a GET of one path until they expire."""

from urllib.parse import urlencode

from controlplane.contract.wire import keys

_INFO = b"cellrun signed links"
# Longer than the placement of a group with resends, and short enough to limit a leaked link.
VALID_SECONDS = 24 * 3600


def link_key(secret_key: str) -> bytes:
    """Return the key of all links of this installation."""
    return keys.derive_key(secret_key.encode(), salt=b"cellrun", info=_INFO)


def sign_link(key: bytes, path: str, *, expires: int) -> str:
    """Return `path` with its signature. `expires`: seconds since 1970."""
    mac = keys.sign(key, _signed_text(path, expires))
    return f"{path}?{urlencode({'expires': expires, 'signature': mac})}"


def is_link_valid(key: bytes, path: str, *, expires: str, signature: str, at: float) -> bool:
    """Return whether `signature` is valid for `path` and `expires`, and has not expired at `at`."""
    if not (expires.isascii() and expires.isdigit() and len(expires) <= 12):
        return False
    if not (signature.isascii() and int(expires) >= at):
        return False
    return keys.is_signed(key, _signed_text(path, int(expires)), signature)


def _signed_text(path: str, expires: int) -> str:
    return f"GET\n{path}\n{expires}"
