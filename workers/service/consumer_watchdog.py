"""Restart the process if orders wait at the broker and the consumer takes none.

A connected consumer may take nothing: kombu repairs a half-open connection within seconds, but has
bugs with this effect. Unanswered heartbeats are no evidence, because the control plane may be down;
orders in the cell's own queue are.
"""

import threading
from collections.abc import Callable, Sequence

import redis
import structlog

from workers import clock

log = structlog.get_logger(__name__)

POLL_SECONDS = 5.0
# Longer than kombu needs to detect a dead connection, shorter than a lease.
STUCK_SECONDS = 20.0
_TIMEOUT_SECONDS = 2.0


class ConsumerWatch:
    """Checks in its own thread, with its own connection."""

    def __init__(
        self,
        broker_url: str,
        queues: Sequence[str],
        on_stuck: Callable[[], None],
        *,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._redis = redis.Redis.from_url(
            broker_url, socket_connect_timeout=_TIMEOUT_SECONDS, socket_timeout=_TIMEOUT_SECONDS
        )
        self._queues = queues
        self._on_stuck = on_stuck
        self._poll_seconds = poll_seconds
        self._taken = 0
        self._seen_taken = -1
        self._since: float | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="consumer-watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop checking."""
        self._closed.set()

    def note_taken(self) -> None:
        """Record that an order was taken. Thread-safe."""
        self._taken += 1

    def check(self, now: float) -> bool:
        """Return whether orders have waited for STUCK_SECONDS at `now`, and none was taken."""
        taken = self._taken
        waits = self._waits()
        if not waits or taken != self._seen_taken:
            self._seen_taken = taken
            self._since = now if waits else None
            return False
        if self._since is None:
            self._since = now
        return now - self._since >= STUCK_SECONDS

    def _waits(self) -> bool:
        pipeline = self._redis.pipeline(transaction=False)
        for name in self._queues:
            pipeline.llen(name)
        try:
            return any(pipeline.execute())
        except redis.RedisError:
            return False  # the broker is down, which is not the consumer's fault

    def _run(self) -> None:
        while not self._closed.wait(self._poll_seconds):
            try:
                if self.check(clock.boot_seconds()):
                    log.error("consumer_stuck")
                    self._since = None
                    self._on_stuck()
            except Exception:  # the next check follows, whatever the error
                log.exception("consumer_check_failed")
