"""Deliver callbacks concurrently, so that no receiver delays another.

The tries share an event loop in their own thread; one other thread uses the database.
"""

import asyncio
import threading
from datetime import datetime, timedelta

import structlog
from django.conf import settings

from controlplane.commands.callbacks import ClaimedCallback, DeliveryAttempt
from controlplane.domain.callbacks.delivery import CLAIM_SECONDS, callback_key, request_headers
from controlplane.outbox.callbacks.http import CallbackClient, CallbackResponse
from controlplane.ticks.callback_store import CallbackStore

STOPPED = "the control plane stopped during the try"
_STOP_SECONDS = 15.0

log = structlog.get_logger(__name__)


class CallbackDelivery:
    """Delivers due callbacks until it is stopped. Any thread may call `poll`."""

    def __init__(self) -> None:
        self._store_thread = CallbackStore()
        self._thread = threading.Thread(target=self._run, name="callbacks", daemon=True)
        self._loop = asyncio.new_event_loop()
        self._due = asyncio.Event()
        self._has_polled = threading.Event()
        self._in_flight: set[asyncio.Task[None]] = set()
        self._posts: set[asyncio.Task[CallbackResponse]] = set()

    def start(self) -> "CallbackDelivery":
        """Start the thread of the event loop."""
        self._thread.start()
        return self

    def poll(self) -> None:
        """Check for due callbacks now."""
        self._loop.call_soon_threadsafe(self._due.set)

    def wait_for_first_poll(self, seconds: float) -> None:
        """Wait for the first claim, successful or not, at most `seconds`."""
        self._has_polled.wait(seconds)

    @property
    def is_alive(self) -> bool:
        """Return whether the thread runs; it ends by `stop` or by a bug."""
        return self._thread.is_alive()

    @property
    def claimed_at(self) -> datetime | None:
        """Return the time of the last successful claim."""
        return self._store_thread.claimed_at

    def stop(self) -> None:
        """Stop; callbacks in progress become due again. Idempotent."""
        if self.is_alive:
            self._loop.call_soon_threadsafe(self._stop)
            self._thread.join(_STOP_SECONDS)

    def _stop(self) -> None:
        self._store_thread.is_stopping = True
        self._due.set()
        for post in self._posts:
            post.cancel()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._deliver())
        finally:
            self._store_thread.close()

    async def _deliver(self) -> None:
        async with CallbackClient(
            allowed=settings.CELLRUN.callback_allowed_networks,
            seconds=settings.CELLRUN.callback_seconds,
            at_once=settings.CELLRUN.callbacks_at_once,
        ) as client:
            while await self._due.wait() and not self._store_thread.is_stopping:
                self._due.clear()
                try:
                    taken, claimed = await self._store_thread.claim()
                except Exception:  # the next poll retries
                    log.exception("callbacks_not_claimed")
                    continue
                finally:
                    self._has_polled.set()
                if taken.retry_seconds is not None:
                    self._loop.call_later(taken.retry_seconds, self._due.set)
                for item in taken.items:
                    task = self._loop.create_task(self._try(client, item, claimed))
                    self._in_flight.add(task)
                    task.add_done_callback(self._in_flight.discard)
            await asyncio.gather(*self._in_flight)

    async def _try(self, client: CallbackClient, item: ClaimedCallback, claimed: float) -> None:
        began = self._loop.time()
        # After a stall of the process or the database, its claim may expire before the try ends.
        is_late = began - claimed > CLAIM_SECONDS - settings.CELLRUN.callback_seconds
        if is_late or self._store_thread.is_stopping:
            await self._store_thread.give_back(item)
            self._due.set()
            return
        key = callback_key(settings.CELLRUN.secret_key, user_id=item.owner_id)
        headers = request_headers(key, item.body, item.callback_id, item.number, item.claimed_at)
        post = self._loop.create_task(
            client.post(item.url, owner_id=item.owner_id, headers=headers, body=item.body)
        )
        self._posts.add(post)
        try:
            answer = await post
        except asyncio.CancelledError:
            answer = CallbackResponse(None, STOPPED)
        except Exception as error:  # one failure must not delay the others
            log.exception("callback_failed", callback=item.callback_id)
            answer = CallbackResponse(None, f"{type(error).__name__}: {error}")
        finally:
            self._posts.discard(post)
        # Add the elapsed time: reading the clock would be one more statement.
        took = timedelta(seconds=self._loop.time() - began)
        ended_at, is_cut_short = item.claimed_at + took, answer.error == STOPPED
        tried = DeliveryAttempt(
            item.claimed_at, ended_at, answer.status, answer.error, is_cut_short, answer.is_begun
        )
        again_seconds = await self._store_thread.note(item, tried)
        if again_seconds is not None:
            self._loop.call_later(again_seconds, self._due.set)
        self._due.set()
