"""Uids of attempts: UUID version 7 (RFC 9562), so that new rows lie together in their index."""

import os
import time
from uuid import UUID

_VERSION_7 = 0x7 << 76
_VARIANT = 0x2 << 62


def draw_uids(count: int) -> list[UUID]:
    """`count` fresh uids."""
    milliseconds = time.time_ns() // 1_000_000
    noise = os.urandom(10 * count)
    return [_uid(milliseconds, noise[10 * n : 10 * n + 10]) for n in range(count)]


def _uid(milliseconds: int, noise: bytes) -> UUID:
    random = int.from_bytes(noise)
    high, low = random >> 68, random & ((1 << 62) - 1)
    return UUID(int=milliseconds << 80 | _VERSION_7 | high << 64 | _VARIANT | low)
