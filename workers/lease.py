"""The cell's view of its lease, and of the control plane's clock.

The lease runs from the moment the cell *sent* the heartbeat that was answered, on a clock that does
not stop while the machine sleeps; so it is over here before it is for the control plane.
"""

from collections import OrderedDict

# Answers to older heartbeats than these tell nothing new.
_REMEMBERED = 64


class Lease:
    """All instants: seconds since boot, but for `server_time`, which is seconds since 1970."""

    def __init__(self) -> None:
        self.expires_at = 0.0
        self.seconds = 0.0
        self._sent: OrderedDict[int, float] = OrderedDict()
        self._server_ahead: float | None = None

    def note_sent(self, seq: int, boot: float) -> None:
        """A heartbeat or Register with this number left at `boot`."""
        self._sent[seq] = boot
        while len(self._sent) > _REMEMBERED:
            self._sent.popitem(last=False)

    def has_sent(self, seq: int) -> bool:
        """Whether message `seq` is known: it left this process, and not long ago."""
        return seq in self._sent

    def renew(self, seq: int, *, lease_seconds: float, server_time: float, boot: float) -> bool:
        """The answer to message `seq` arrived at `boot`; False if that message is not known."""
        sent = self._sent.get(seq)
        if sent is None:
            return False
        self.expires_at = max(self.expires_at, sent + lease_seconds)
        self.seconds = lease_seconds
        # The server wrote its time after we sent: taking the moment of sending can only make its
        # clock look further ahead, which refuses a late order rather than running it.
        self._server_ahead = server_time - sent
        return True

    def server_time(self, boot: float) -> float | None:
        """What the control plane's clock shows now; None before its first answer."""
        return None if self._server_ahead is None else boot + self._server_ahead

    def remaining(self, boot: float) -> float:
        """Seconds until the lease is over; negative when it is."""
        return self.expires_at - boot
