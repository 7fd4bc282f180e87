"""Uids of attempts: UUID version 7 (RFC 9562), so that new rows lie together in their index."""

import os
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

_VERSION_7 = 0x7 << 76
_VARIANT = 0x2 << 62

Noise = Callable[[int], bytes]
"""Return so many unpredictable bytes."""

_noise: Noise = os.urandom


def draw_uids(count: int, *, now: datetime) -> list[UUID]:
    """`count` fresh uids."""
    milliseconds = int(now.timestamp() * 1000)
    noise = _noise(10 * count)
    return [_uid(milliseconds, noise[10 * n : 10 * n + 10]) for n in range(count)]


def use(noise: Noise | None) -> None:
    """Draw from `noise` instead (a simulation's, so that it can be replayed); None goes back."""
    global _noise
    _noise = noise or os.urandom


def _uid(milliseconds: int, noise: bytes) -> UUID:
    random = int.from_bytes(noise)
    high, low = random >> 68, random & ((1 << 62) - 1)
    return UUID(int=milliseconds << 80 | _VERSION_7 | high << 64 | _VARIANT | low)
