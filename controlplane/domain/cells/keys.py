"""Address and key of a cell; the key is derived from the installation's secret, not stored."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from controlplane.contract.wire.envelope import VERSION
from controlplane.contract.wire.keys import derive_key

SALT_BYTES = 16
"""Random bytes from which the key of a cell is derived."""


@dataclass(frozen=True, slots=True)
class CellAddress:
    """Address and key of one incarnation of a cell.

    `version`: of the messages that it reads, as it registered. `salt`: that of the key.
    """

    cell_id: int
    name: str
    incarnation: str
    key: bytes = field(repr=False)
    version: int = field(default=VERSION, compare=False)
    salt: str = field(default="", repr=False, compare=False)


@lru_cache(maxsize=64)
def key_id(secret_key: str) -> str:
    """Return an id of CELLRUN_SECRET_KEY that does not reveal it, in 16 hex digits."""
    return derive_key(secret_key.encode(), salt=b"cellrun", info=b"cellrun key id")[:8].hex()


def choose_secret_key(secret_keys: Sequence[str], wanted: str) -> str:
    """Return the key with the id `wanted`; the first, if it is none of them."""
    return next((key for key in secret_keys if key_id(key) == wanted), secret_keys[0])


# Cached, because each placement pass uses the keys of all cells that receive work.
@lru_cache(maxsize=4096)
def cell_key(secret_key: str, *, name: str, salt: str) -> bytes:
    """Return the key of the cell `name`.

    `salt`: random, in hex, created at enrolment. A new salt results in a new key.
    """
    info = b"cellrun cell " + name.encode()
    return derive_key(secret_key.encode(), salt=bytes.fromhex(salt), info=info)
