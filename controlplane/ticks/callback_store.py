"""Claim callbacks and record their results; one thread does all database work."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from typing import TypeVar

import structlog
from django.db import close_old_connections, connections

from controlplane import clock
from controlplane.commands.callbacks import (
    ClaimBatch,
    ClaimedCallback,
    DeliveryAttempt,
    claim_callbacks,
    give_back,
    record_try,
    resolve_delivered,
)
from controlplane.domain.callbacks.delivery import CLAIM_SECONDS

# Between two tries to record a result while the database is unavailable.
_WRITE_AGAIN_SECONDS = 1.0

log = structlog.get_logger(__name__)
_T = TypeVar("_T")


class CallbackStore:
    """Serializes concurrent calls from one event loop in one database thread."""

    def __init__(self) -> None:
        self._database = ThreadPoolExecutor(1, thread_name_prefix="callbacks-database")
        self._left_off = ""
        self.claimed_at: datetime | None = None  # time of the last successful claim
        self.is_stopping = False

    def close(self) -> None:
        """Wait until all calls are done. No calls are allowed afterwards."""
        self._database.submit(connections.close_all)
        self._database.shutdown()

    async def claim(self) -> tuple[ClaimBatch, float]:
        """Claim due callbacks; return them with the loop's time before. Raise database errors."""
        return await self._call(partial(self._claim, asyncio.get_running_loop()))

    def _claim(self, loop: asyncio.AbstractEventLoop) -> tuple[ClaimBatch, float]:
        began, now = loop.time(), clock.now()
        taken = claim_callbacks(now=now, left_off=self._left_off)
        self._left_off, self.claimed_at = taken.left_off, now
        return taken, began

    async def give_back(self, item: ClaimedCallback) -> None:
        """Release the claim of a callback without a try."""
        try:
            await self._call(lambda: give_back(item, now=clock.now()))
        except Exception:  # convergence releases it later
            log.exception("callback_not_given_back", callback=item.callback_id)

    async def note(self, item: ClaimedCallback, tried: DeliveryAttempt) -> float | None:
        """Record the result of a try; return the seconds until the next try, None without one."""
        noted = await self._insist(item, partial(record_try, item, tried))
        if noted is None:
            return None
        if not noted.is_resolved:
            await self._insist(item, lambda: resolve_delivered(item, now=clock.now()) or None)
        return noted.again_seconds

    async def _insist(self, item: ClaimedCallback, work: Callable[[], _T | None]) -> _T | None:
        """Retry `work` until it returns a value; return None after the end of the claim.

        Each retry queues behind the calls of other deliveries.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + CLAIM_SECONDS
        while True:
            try:
                done = await self._call(work)
            except Exception:  # after the end of the claim, convergence releases it
                log.exception("callback_not_noted", callback=item.callback_id)
                done = None
            if done is not None or self.is_stopping or loop.time() > give_up:
                return done
            await asyncio.sleep(_WRITE_AGAIN_SECONDS)

    async def _call(self, work: Callable[[], _T]) -> _T:
        """Run `work` in the thread that owns the database connection."""

        def call() -> _T:
            close_old_connections()
            return work()

        return await asyncio.get_running_loop().run_in_executor(self._database, call)
