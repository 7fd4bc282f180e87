"""Signed links, which authorize a GET of one path until they expire.

Cells get links for a group: the signature includes it, and web answers only requests of a cell that
runs an attempt of the group. Browsers get links without one.
"""

from urllib.parse import urlencode

from controlplane.contract.wire import keys

_INFO = b"cellrun signed links"
# Longer than the placement of a group with resends, and short enough to limit a leaked link.
VALID_SECONDS = 24 * 3600


def link_key(secret_key: str) -> bytes:
    """Return the key of all links of this installation."""
    return keys.derive_key(secret_key.encode(), salt=b"cellrun", info=_INFO)


def sign_link(key: bytes, path: str, *, expires: int, group: int | None = None) -> str:
    """Return `path` with its signature. `expires`: seconds since 1970."""
    mac = keys.sign(key, _signed_text(path, expires, group))
    query = {} if group is None else {"group": group}
    return f"{path}?{urlencode({**query, 'expires': expires, 'signature': mac})}"


def is_link_valid(
    key: bytes, path: str, *, expires: str, signature: str, at: float, group: int | None = None
) -> bool:
    """Return whether `signature` is valid for the other values, and has not expired at `at`."""
    if not (expires.isascii() and expires.isdigit() and len(expires) <= 12):
        return False
    if not (signature.isascii() and int(expires) >= at):
        return False
    return keys.is_signed(key, _signed_text(path, int(expires), group), signature)


def _signed_text(path: str, expires: int, group: int | None) -> str:
    text = f"GET\n{path}\n{expires}"
    return text if group is None else f"{text}\ngroup {group}"
