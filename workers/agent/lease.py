"""The cell's view of its lease, and of the control plane's clock.

The lease runs from the moment the cell *sent* the heartbeat that was answered, on a clock that does
not stop while the machine sleeps; so it is over here before it is for the control plane.
"""

from collections import OrderedDict, deque

import structlog
from structlog.stdlib import BoundLogger

from workers.agent.inputs import ClockReading

log = structlog.get_logger(__name__)

# Answers to older heartbeats carry no new information.
_REMEMBERED = 64
# Of so many answers the fastest one gives the best estimate of the other clock.
_SAMPLES = 8
# Clocks that are no further apart are taken for the same; people set them by hand, and NTP slews.
CLOCK_SECONDS = 2.0


class Lease:
    """All instants: seconds since boot, except `server_time`, which is seconds since 1970."""

    def __init__(self, log: BoundLogger = log) -> None:
        """`log`: bound to the cell."""
        self._log = log
        self.expires_at = 0.0
        self.seconds = 0.0
        self._sent: OrderedDict[int, float] = OrderedDict()
        self._server_ahead: float | None = None
        self._samples: deque[tuple[float, float]] = deque(maxlen=_SAMPLES)
        self._is_off = False

    def note_sent(self, seq: int, boot: float) -> None:
        """A heartbeat or Register with this number left at `boot`."""
        self._sent[seq] = boot
        while len(self._sent) > _REMEMBERED:
            self._sent.popitem(last=False)

    def has_sent(self, seq: int) -> bool:
        """Whether message `seq` is known: it left this process, and not long ago."""
        return seq in self._sent

    def renew(
        self, seq: int, *, lease_seconds: float, server_time: float, now: ClockReading
    ) -> bool:
        """The answer to message `seq` arrived; False if that message is not known."""
        sent = self._sent.get(seq)
        if sent is None:
            return False
        self.expires_at = max(self.expires_at, sent + lease_seconds)
        self.seconds = lease_seconds
        # The server wrote its time after the cell sent: using the time of sending can only put the
        # server's clock too far ahead, which refuses a late order instead of running it.
        self._server_ahead = server_time - sent
        self._compare_clocks(now.boot - sent, server_time, now.wall)
        return True

    def server_time(self, boot: float) -> float | None:
        """What the control plane's clock shows now; None before its first answer."""
        return None if self._server_ahead is None else boot + self._server_ahead

    def _compare_clocks(self, trip: float, server_time: float, wall: float) -> None:
        self._samples.append((trip, wall - trip / 2 - server_time))
        ahead = self.clock_ahead or 0.0
        is_off = abs(ahead) >= CLOCK_SECONDS
        if is_off and not self._is_off:
            self._log.warning("clock_is_off", ahead_seconds=ahead)
        self._is_off = is_off

    @property
    def clock_ahead(self) -> float | None:
        """Seconds by which the wall clock here is ahead of the control plane's, as estimated.

        At most half the time off that the fastest of the last answers took.
        """
        return round(min(self._samples)[1], 3) if self._samples else None

    @property
    def clock_to_correct(self) -> float:
        """Return what to subtract from an instant of this machine before it is reported."""
        return (self.clock_ahead or 0.0) if self._is_off else 0.0

    def remaining(self, boot: float) -> float:
        """Seconds until the lease is over; negative when it is."""
        return self.expires_at - boot
