"""The frames of exec sessions in Redis, between the web process of the client and of the cell.

A session has a hash with its positions and one stream for each direction. The id of an entry is its
position, so that no frame is stored twice or out of order. Redis may lose all of it: the session
then ends, because a lost hash is never made again after the cell has claimed the session.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

import redis.asyncio
from django.conf import settings

from controlplane.contract.exec_frames import MAX_UNCONFIRMED_BYTES, ExecFrame, FrameKind

TTL_SECONDS = 3_600
BLOCK_SECONDS = 1.0
_TIMEOUT_SECONDS = 5.0
# Frames of one read: at most 256 KiB.
_PAGE = 4
# What an entry takes in addition to its payload; bounds the number of small frames.
_ENTRY_BYTES = 64


class Direction(StrEnum):
    """Where frames of a session go."""

    IN = "in"
    """From the client to the cell."""
    OUT = "out"


class Side(StrEnum):
    """The ends of a session; the newest connection of a side replaces the one before."""

    CLIENT = "client"
    CELL = "cell"

    @property
    def sends(self) -> Direction:
        """Return the direction of its frames."""
        return Direction.IN if self is Side.CLIENT else Direction.OUT

    @property
    def receives(self) -> Direction:
        """Return the direction of the frames that it receives."""
        return Direction.OUT if self is Side.CLIENT else Direction.IN


class StreamLost(Exception):
    """Redis has lost the session."""


class ConnectionReplaced(Exception):
    """A newer connection of the same side exists."""


class WrongPosition(Exception):
    """A frame is missing before this one, or it confirms frames that do not exist."""


@dataclass(frozen=True, slots=True)
class Positions:
    """`stored`: the last stored frame of the own direction; `acked`, `last`: of the other one."""

    stored: int
    acked: int
    last: int


_OPEN = """
if redis.call('EXISTS', KEYS[1]) == 0 then
  if ARGV[5] ~= '1' then return {'lost'} end
  redis.call('HSET', KEYS[1], 'made', '1')
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, ARGV[6]) end
local own, other = ARGV[3], ARGV[4]
return {'ok', redis.call('HGET', KEYS[1], own .. ':last') or '0',
        redis.call('HGET', KEYS[1], other .. ':acked') or '0',
        redis.call('HGET', KEYS[1], other .. ':last') or '0'}
"""

_CHECK_OWNER = """
local owner = redis.call('HGET', KEYS[1], ARGV[1])
if not owner then return 'lost' end
if owner ~= ARGV[2] then return 'replaced' end
"""

_KEEP = f"""
{_CHECK_OWNER}
for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, ARGV[3]) end
return 'ok'
"""

_APPEND = f"""
{_CHECK_OWNER}
local dir, position, payload = ARGV[3], tonumber(ARGV[4]), ARGV[6]
local last = tonumber(redis.call('HGET', KEYS[1], dir .. ':last') or '0')
if position <= last then return 'ok' end
if position ~= last + 1 then return 'gap' end
local total = tonumber(redis.call('HGET', KEYS[1], dir .. ':total') or '0')
local freed = tonumber(redis.call('HGET', KEYS[1], dir .. ':freed') or '0')
local size = #payload + {_ENTRY_BYTES}
if total > freed and total - freed + size > {MAX_UNCONFIRMED_BYTES} then return 'full' end
total = string.format('%.0f', total + size)
redis.call('XADD', KEYS[2], ARGV[4] .. '-0', 'k', ARGV[5], 'p', payload, 't', total)
redis.call('HSET', KEYS[1], dir .. ':last', ARGV[4], dir .. ':total', total)
redis.call('EXPIRE', KEYS[2], ARGV[7])
return 'ok'
"""

_ACK = f"""
{_CHECK_OWNER}
local dir, position = ARGV[3], tonumber(ARGV[4])
local last = tonumber(redis.call('HGET', KEYS[1], dir .. ':last') or '0')
local acked = tonumber(redis.call('HGET', KEYS[1], dir .. ':acked') or '0')
if position > last then return 'gap' end
if position <= acked then return 'ok' end
local found = redis.call('XRANGE', KEYS[2], ARGV[4] .. '-0', ARGV[4] .. '-0')
if #found == 0 then return 'lost' end
redis.call('HSET', KEYS[1], dir .. ':acked', ARGV[4], dir .. ':freed', found[1][2][6])
redis.call('XTRIM', KEYS[2], 'MINID', string.format('%.0f-0', position + 1))
return 'ok'
"""

_HAS_ROOM = f"""
{_CHECK_OWNER}
local total = tonumber(redis.call('HGET', KEYS[1], ARGV[3] .. ':total') or '0')
local freed = tonumber(redis.call('HGET', KEYS[1], ARGV[3] .. ':freed') or '0')
if total > freed and total - freed + tonumber(ARGV[4]) + {_ENTRY_BYTES} > {MAX_UNCONFIRMED_BYTES}
then return 'full' end
return 'ok'
"""


class ExecStreams:
    """The connections of one event loop to Redis."""

    def __init__(self) -> None:
        self._redis: Any = redis.asyncio.Redis.from_url(
            settings.CELERY_BROKER_URL,
            socket_connect_timeout=_TIMEOUT_SECONDS,
            socket_timeout=_TIMEOUT_SECONDS,
        )
        self._open = self._redis.register_script(_OPEN)
        self._keep = self._redis.register_script(_KEEP)
        self._append = self._redis.register_script(_APPEND)
        self._ack = self._redis.register_script(_ACK)
        self._has_room = self._redis.register_script(_HAS_ROOM)

    async def open(self, session: UUID, side: Side, owner: str, *, is_new: bool) -> Positions:
        """Replace the connection of a side; return where its frames continue.

        `is_new`: whether the session may have no streams yet. Raise StreamLost.
        """
        arguments: list[Any] = [side, owner, side.sends, side.receives, int(is_new), TTL_SECONDS]
        status, *numbers = await self._open(keys=_keys(session), args=arguments)
        _check(status)
        stored, acked, last = map(int, numbers)
        return Positions(stored, acked, last)

    async def close(self) -> None:
        """Close the connections to Redis."""
        await self._redis.aclose()

    def of_side(self, session: UUID, side: Side, owner: str) -> "SideStreams":
        """Return the streams of a session as one connection uses them."""
        return SideStreams(self, session, side, owner)


class SideStreams:
    """What one connection does with the streams of its session.

    Each method raises StreamLost, or ConnectionReplaced if there is a newer connection.
    """

    def __init__(self, streams: ExecStreams, session: UUID, side: Side, owner: str) -> None:
        self._streams = streams
        self._side = side
        self._owner = owner
        self._hash, *_ = _keys(session)
        self._sent = f"{self._hash}:{side.sends}"
        self._received = f"{self._hash}:{side.receives}"

    async def keep(self) -> None:
        """Keep the streams for another hour."""
        keys = [self._hash, self._sent, self._received]
        _check(await self._streams._keep(keys=keys, args=[self._side, self._owner, TTL_SECONDS]))

    async def append(self, frame: ExecFrame) -> bool:
        """Store a frame, unless it is stored; return False if there is no room for it.

        Raise WrongPosition if the frame before it is missing.
        """
        arguments: list[Any] = [
            self._side,
            self._owner,
            self._side.sends,
            frame.position,
            int(frame.kind),
            frame.payload,
            TTL_SECONDS,
        ]
        status = await self._streams._append(keys=[self._hash, self._sent], args=arguments)
        return status != b"full" and _check(status)

    async def has_room(self, size: int) -> bool:
        """Return whether a frame of `size` bytes could be stored now."""
        arguments: list[Any] = [self._side, self._owner, self._side.sends, size]
        status = await self._streams._has_room(keys=[self._hash], args=arguments)
        return status != b"full" and _check(status)

    async def acknowledge(self, position: int) -> None:
        """Remove the received frames up to `position`. Raise WrongPosition."""
        arguments: list[Any] = [self._side, self._owner, self._side.receives, position]
        _check(await self._streams._ack(keys=[self._hash, self._received], args=arguments))

    async def read(self, after: int, *, seconds: float = BLOCK_SECONDS) -> Sequence[ExecFrame]:
        """Return the next frames for this side; none if there are none within `seconds`."""
        block = max(1, int(seconds * 1000))
        found = await self._streams._redis.xread(
            {self._received: f"{after}-0"}, count=_PAGE, block=block
        )
        if not found:
            return []
        [(_, entries)] = found.items() if isinstance(found, dict) else found
        return [_frame(entry) for entry in entries]


def _keys(session: UUID) -> list[str]:
    name = f"exec:{session}"
    return [name, f"{name}:{Direction.IN}", f"{name}:{Direction.OUT}"]


def _frame(entry: tuple[bytes, dict[bytes, bytes]]) -> ExecFrame:
    name, fields = entry
    return ExecFrame(FrameKind(int(fields[b"k"])), int(name.partition(b"-")[0]), fields[b"p"])


def _check(status: bytes) -> bool:
    """Return True for `ok`; raise what another status of a script means."""
    match status:
        case b"ok":
            return True
        case b"replaced":
            raise ConnectionReplaced
        case b"gap":
            raise WrongPosition
        case _:
            raise StreamLost
