"""Uids of attempts: UUID version 7 (RFC 9562), so that new rows are adjacent in the index."""

import os
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

_VERSION_7 = 0x7 << 76
_VARIANT = 0x2 << 62

Noise = Callable[[int], bytes]
"""Returns a number of unpredictable bytes."""

_noise: Noise = os.urandom


def draw_uids(count: int, *, now: datetime) -> list[UUID]:
    """Return `count` new uids."""
    milliseconds = int(now.timestamp() * 1000)
    noise = _noise(10 * count)
    return [_uid(milliseconds, noise[10 * n : 10 * n + 10]) for n in range(count)]


def use(noise: Noise | None) -> None:
    """Draw from `noise` (of a replayable simulation); None restores the default."""
    global _noise
    _noise = noise or os.urandom


def _uid(milliseconds: int, noise: bytes) -> UUID:
    random = int.from_bytes(noise)
    high, low = random >> 68, random & ((1 << 62) - 1)
    return UUID(int=milliseconds << 80 | _VERSION_7 | high << 64 | _VARIANT | low)
