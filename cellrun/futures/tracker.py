"""Follow the changes of all jobs of a client with one stream, in one thread."""

import logging
import threading
import time
from collections.abc import Callable

from cellrun.api.events import EventFollower, StateChange
from cellrun.api.session import Session
from cellrun.errors import ApiError, ClientError
from cellrun.futures.bundles import Bundle
from cellrun.futures.open_bundles import OpenBundles
from cellrun.futures.threads import ClientThread
from cellrun.settings import ClientSettings
from cellrun.states import TERMINAL_STATES

POSITION_GONE = 410
NOTED_AFTER_SECONDS = 5.0
"""Of an outage: a restart takes less."""
OUTAGE_GAP_SECONDS = 90.0
"""Without a failed connection for this long, the next one begins another outage."""

log = logging.getLogger("cellrun")

OnEnd = Callable[[Bundle, StateChange], None]


class EventTracker:
    """The thread. `on_end` receives the end of each open task or job, possibly twice.

    `on_gap`: changes may have been missed. `on_fault`: the stream cannot continue.
    """

    def __init__(
        self,
        settings: ClientSettings,
        bundles: OpenBundles,
        *,
        project: str,
        patience_seconds: float,
        on_end: OnEnd,
        on_gap: Callable[[], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._settings, self._bundles = settings, bundles
        self._project, self._patience = project, patience_seconds
        self._on_end, self._on_gap = on_end, on_gap
        self._follower: EventFollower | None = None
        self._is_closed = False
        self._outage: tuple[float, float, bool] | None = None
        self.connected = threading.Event()
        """Set once changes arrive, or the stream has failed."""
        self._thread = ClientThread(self._run, "cellrun-events", on_fault)

    def start(self) -> None:
        """Connect, and follow until `close`."""
        self._thread.start()

    def close(self) -> None:
        """End the stream."""
        self._is_closed = True
        follower = self._follower
        if follower is not None:
            follower.close()

    def join(self, seconds: float) -> bool:
        """Return whether the thread has ended, at the latest after so many seconds."""
        return self._thread.join(seconds)

    def apply(self, change: StateChange) -> None:
        """Apply a change to the future of its task or job."""
        bundle = self._bundles.find(change)
        if bundle is None:
            return
        bundle.last_change = time.monotonic()
        is_end = change.after in TERMINAL_STATES
        if change.task is None:
            future = bundle.whole
        else:
            future = bundle.futures.get(change.task.rpartition("/")[2])
        if future is None:
            return
        if is_end:
            self._on_end(bundle, change)
        elif change.after == "RUNNING":
            future.begin()

    def _run(self) -> None:
        try:
            while not self._is_closed:
                with Session(self._settings) as session:
                    self._follow(session)
        finally:
            self.connected.set()

    def _follow(self, session: Session) -> None:
        """Follow until the stream is closed, or its position is gone."""
        with session.events(
            project=self._project,
            patience_seconds=self._patience,
            on_trouble=lambda fault: self._note(fault, time.monotonic()),
        ) as self._follower:
            if self._is_closed:
                return
            self._follower.open()
            if self.connected.is_set():
                self._on_gap()
            self.connected.set()
            try:
                for change in self._follower:
                    self.apply(change)
            except ApiError as fault:
                if fault.status != POSITION_GONE:
                    raise

    def _note(self, fault: ClientError, now: float) -> None:
        """Log one warning per outage, since futures stay open meanwhile."""
        begin, last, is_noted = self._outage or (now, now, False)
        if now - last > OUTAGE_GAP_SECONDS:
            begin, is_noted = now, False
        if not is_noted and now - begin >= NOTED_AFTER_SECONDS:
            log.warning("%s; trying again for up to %d s", fault, self._patience)
            is_noted = True
        self._outage = (begin, now, is_noted)
