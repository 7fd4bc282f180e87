"""Recheck the tokens of streams, once for all streams of a token."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import InterfaceError, OperationalError
from rest_framework.exceptions import AuthenticationFailed, Throttled

from controlplane.api import charges
from controlplane.api.streams.connections import TOKEN_SECONDS, check_token, close_database
from controlplane.domain.roles import Access
from controlplane.queries.tenancy.access import load_access

MAX_STREAMS = 100
"""Streams that a token may have in one web process."""

# What a stream costs between two checks, in addition to its events: writes and wakes.
STREAM_UNITS = 5.0


class TokenWatch:
    """The token of some streams, with the roles that it had at the last check."""

    def __init__(self, token: bytes, access: Access, at: float) -> None:
        self.access = access
        self.streams = 0
        self.events = 0
        """Events that were sent or read since the last check."""
        self._token = token
        self._checked_at = at
        self._is_valid = True
        self._lock = asyncio.Lock()

    @property
    def due_at(self) -> float:
        """Return when the token is to be checked again, in the time of the loop."""
        return self._checked_at + TOKEN_SECONDS

    async def is_valid(self) -> bool:
        """Return whether the token is valid and has units; check it if that is due."""
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if self._is_valid and now >= self.due_at:
                self._is_valid = await asyncio.to_thread(self._check)
                self._checked_at, self.events = now, 0
            return self._is_valid

    def _check(self) -> bool:
        try:
            credential = check_token(self._token)
            self.access = load_access(credential)
            units = STREAM_UNITS * self.streams + self.events / charges.ROWS_PER_UNIT
            charges.admit_credential(credential, units)
        except (AuthenticationFailed, Throttled, OperationalError, InterfaceError):
            return False
        finally:
            close_database()
        return True


class TokenWatches:
    """The tokens of all streams of this process."""

    def __init__(self) -> None:
        self._watches: dict[bytes, TokenWatch] = {}

    @contextmanager
    def entered(self, token: bytes, access: Access) -> Iterator[TokenWatch | None]:
        """Count a stream of a token; None: the token has as many as it may have."""
        watch = self._watches.get(token)
        if watch is None:
            watch = TokenWatch(token, access, asyncio.get_running_loop().time())
            self._watches[token] = watch
        if watch.streams >= MAX_STREAMS:
            yield None
            return
        watch.streams += 1
        try:
            yield watch
        finally:
            watch.streams -= 1
            if not watch.streams and self._watches.get(token) is watch:
                del self._watches[token]
