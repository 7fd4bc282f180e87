"""The cell's view of its lease, and of the control plane's clock.

The lease runs from the time when the cell *sent* the answered heartbeat, on a clock that includes
sleep; so it expires here before it expires for the control plane.
"""

from collections import OrderedDict, deque

import structlog
from structlog.stdlib import BoundLogger

from workers.agent.inputs import ClockReading

log = structlog.get_logger(__name__)

# Answers to older heartbeats carry no new information.
_REMEMBERED = 64
# Recent answers, the fastest of which gives the best estimate of the other clock.
_SAMPLES = 8
# A smaller difference of the clocks is ignored: people set them by hand, and NTP slews.
CLOCK_SECONDS = 2.0


class Lease:
    """All times are in seconds since boot, except `server_time`, in seconds since 1970."""

    def __init__(self, log: BoundLogger = log) -> None:
        """Create a lease that has expired; `log` is bound to the cell."""
        self._log = log
        self.expires_at = 0.0
        self.seconds = 0.0
        self._sent: OrderedDict[int, float] = OrderedDict()
        self._server_ahead: float | None = None
        self._samples: deque[tuple[float, float]] = deque(maxlen=_SAMPLES)
        self._is_off = False

    def note_sent(self, seq: int, boot: float) -> None:
        """Record that a heartbeat or Register with this number was sent at `boot`."""
        self._sent[seq] = boot
        while len(self._sent) > _REMEMBERED:
            self._sent.popitem(last=False)

    def has_sent(self, seq: int) -> bool:
        """Return whether this process sent message `seq` recently."""
        return seq in self._sent

    def renew(
        self, seq: int, *, lease_seconds: float, server_time: float, now: ClockReading
    ) -> bool:
        """Renew the lease by the answer to message `seq`; return False if it is unknown."""
        sent = self._sent.get(seq)
        if sent is None:
            return False
        self.expires_at = max(self.expires_at, sent + lease_seconds)
        self.seconds = lease_seconds
        # The time of sending precedes the server's time, so the estimate of the server's clock can
        # only be ahead. That refuses a late order instead of running it.
        self._server_ahead = server_time - sent
        self._compare_clocks(now.boot - sent, server_time, now.wall)
        return True

    def server_time(self, boot: float) -> float | None:
        """Return the estimated time of the control plane's clock; None before its first answer."""
        return None if self._server_ahead is None else boot + self._server_ahead

    def _compare_clocks(self, round_trip: float, server_time: float, wall: float) -> None:
        self._samples.append((round_trip, wall - round_trip / 2 - server_time))
        ahead = self.clock_ahead or 0.0
        is_off = abs(ahead) >= CLOCK_SECONDS
        if is_off and not self._is_off:
            self._log.warning("clock_is_off", ahead_seconds=ahead)
        self._is_off = is_off

    @property
    def clock_ahead(self) -> float | None:
        """The estimated seconds by which this wall clock is ahead of the control plane's.

        The error is at most half the round trip of the fastest recent answer.
        """
        return round(min(self._samples)[1], 3) if self._samples else None

    @property
    def clock_to_correct(self) -> float:
        """Seconds to subtract from a time of this machine before it is reported."""
        return (self.clock_ahead or 0.0) if self._is_off else 0.0

    def remaining(self, boot: float) -> float:
        """Return the seconds until the lease expires; negative afterwards."""
        return self.expires_at - boot
