"""Claims and results of callback deliveries: all database work goes through one thread."""

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

# Between two tries to write down how a callback went, while the database is away.
_WRITE_AGAIN_SECONDS = 1.0

log = structlog.get_logger(__name__)
_T = TypeVar("_T")


class CallbackStore:
    """Called from one event loop, any number at once; each call waits for its turn."""

    def __init__(self) -> None:
        self._database = ThreadPoolExecutor(1, thread_name_prefix="callbacks-database")
        self._left_off = ""
        self.claimed_at: datetime | None = None  # when it last found out what is due
        self.is_stopping = False

    def close(self) -> None:
        """Wait until all calls are done. Nothing is called after that."""
        self._database.submit(connections.close_all)
        self._database.shutdown()

    async def claim(self) -> tuple[ClaimBatch, float]:
        """What is due and within bounds, and the loop's time before. Raises whatever goes wrong."""
        return await self._call(partial(self._claim, asyncio.get_running_loop()))

    def _claim(self, loop: asyncio.AbstractEventLoop) -> tuple[ClaimBatch, float]:
        began, now = loop.time(), clock.now()
        taken = claim_callbacks(now=now, left_off=self._left_off)
        self._left_off, self.claimed_at = taken.left_off, now
        return taken, began

    async def give_back(self, item: ClaimedCallback) -> None:
        """Nothing was sent."""
        try:
            await self._call(lambda: give_back(item, now=clock.now()))
        except Exception:  # convergence does so later
            log.exception("callback_not_given_back", callback=item.callback_id)

    async def note(self, item: ClaimedCallback, tried: DeliveryAttempt) -> float | None:
        """Write down how it went; in how many seconds there is another try, if there is one."""
        noted = await self._insist(item, partial(record_try, item, tried))
        if noted is None:
            return None
        if not noted.is_resolved:
            await self._insist(item, lambda: resolve_delivered(item, now=clock.now()) or None)
        return noted.again_seconds

    async def _insist(self, item: ClaimedCallback, work: Callable[[], _T | None]) -> _T | None:
        """What `work` comes to, behind what others want each time; None: it did not in time."""
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
        """`work` in the thread whose connection to the database is used for nothing else."""

        def call() -> _T:
            close_old_connections()
            return work()

        return await asyncio.get_running_loop().run_in_executor(self._database, call)
