"""Collect calls and jobs for some milliseconds and submit them together, in one thread."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from cellrun.api.polling import TOO_MANY_REQUESTS, TRANSIENT, PollInterval
from cellrun.api.session import Session
from cellrun.errors import ApiError, Unreachable
from cellrun.futures.bundles import Bundle, BundleMaker, PendingCall
from cellrun.futures.promises import ServerFuture
from cellrun.futures.threads import ClientThread, Patience
from cellrun.settings import ClientSettings

MAX_JOBS = 200
"""Jobs of one request."""
MAX_REQUEST_BYTES = 3_000_000
READY_SECONDS = 0.5
MOST_CALLS = 5_000
"""Calls that one round takes, so that the first ones start early."""

Item = tuple[PendingCall, BundleMaker] | Bundle


class Submitter:
    """The thread. `on_expect` is called before a request, `on_accept` with the jobs of it.

    `on_accept` also receives those of a failed request, which have no number. `is_ready` waits up
    to some seconds until changes arrive, so that none of the submitted jobs is missed.
    """

    def __init__(
        self,
        settings: ClientSettings,
        *,
        linger_seconds: float,
        patience: Patience,
        is_ready: Callable[[float], bool],
        on_expect: Callable[[], None],
        on_accept: Callable[[Sequence[Bundle]], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._settings = settings
        self._linger, self._patience = linger_seconds, patience
        self._is_ready, self._on_expect, self._on_accept = is_ready, on_expect, on_accept
        self._changed = threading.Condition()
        self._items: deque[Item] = deque()
        self._taken: list[Item] = []
        self._is_closed = False
        self._thread = ClientThread(self._run, "cellrun-submit", on_fault)

    def start(self) -> None:
        """Submit until `close`."""
        self._thread.start()

    def put(self, item: Item) -> None:
        """Submit a call or a job soon."""
        with self._changed:
            self._items.append(item)
            if len(self._items) == 1:
                self._changed.notify()

    def close(self) -> None:
        """End when all is submitted."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def join(self, seconds: float) -> bool:
        """Return whether the thread has ended, at the latest after so many seconds."""
        return self._thread.join(seconds)

    def reject_all(self, fault: BaseException) -> None:
        """Submit nothing more, and set an exception on the futures without a job."""
        self.close()
        with self._changed:
            items = [*self._taken, *self._items]
            self._items.clear()
        for item in items:
            future = item.whole if isinstance(item, Bundle) else item[0].future
            if future is not None:
                future.reject(fault)

    def _run(self) -> None:
        since = time.monotonic()
        while not self._is_ready(READY_SECONDS) and not self._patience.is_over(since):
            pass
        with Session(self._settings) as session:
            while items := self._next():
                for bundles in _requests_of(_bundles_of(items)):
                    self._submit(session, bundles)

    def _next(self) -> list[Item]:
        """Return what came within the linger time after the first; nothing at the end."""
        with self._changed:
            self._taken = []
            while not self._items:
                if self._is_closed:
                    return []
                self._changed.wait()
        time.sleep(self._linger)
        with self._changed:
            count = min(len(self._items), MOST_CALLS)
            self._taken = [self._items.popleft() for _ in range(count)]
            return self._taken

    def _submit(self, session: Session, bundles: Sequence[Bundle]) -> None:
        self._on_expect()
        try:
            self._send(session, bundles)
        except (Unreachable, ApiError) as fault:
            is_refusal = isinstance(fault, ApiError) and fault.status not in TRANSIENT
            if len(bundles) > 1 and is_refusal:
                # One of them is invalid. The others are submitted, each alone.
                for bundle in bundles:
                    self._submit(session, [bundle])
                return
            _reject(bundles, fault)
        self._on_accept(bundles)

    def _send(self, session: Session, bundles: Sequence[Bundle]) -> None:
        """Submit jobs; repeat it while the server is unavailable. Each has a guid."""
        pace = PollInterval(None)
        since = time.monotonic()
        while True:
            try:
                if len(bundles) == 1:
                    jobs = [session.submit(bundles[0].document)]
                else:
                    jobs = session.submit_all([bundle.document for bundle in bundles])
                break
            except Unreachable:
                if self._patience.is_over(since):
                    raise
            except ApiError as fault:
                is_short = fault.status in (*TRANSIENT, TOO_MANY_REQUESTS)
                if not is_short or self._patience.is_over(since):
                    raise
            pace.rest(f"server {session.url}")
        for bundle, job in zip(bundles, jobs, strict=True):
            bundle.accept(job["id"])


def _bundles_of(items: Iterable[Item]) -> Iterator[Bundle]:
    """Yield jobs of what is not cancelled yet."""
    calls: dict[BundleMaker, list[PendingCall]] = {}
    for item in items:
        if isinstance(item, Bundle):
            if item.whole is not None and not item.whole.cancelled():
                yield item
        elif not item[0].future.cancelled():
            calls.setdefault(item[1], []).append(item[0])
    for make, found in calls.items():
        yield from make(found)


def _requests_of(bundles: Iterable[Bundle]) -> Iterator[list[Bundle]]:
    part: list[Bundle] = []
    size = 0
    for bundle in bundles:
        if part and (len(part) == MAX_JOBS or size + bundle.size > MAX_REQUEST_BYTES):
            yield part
            part, size = [], 0
        part.append(bundle)
        size += bundle.size
    if part:
        yield part


def _reject(bundles: Iterable[Bundle], fault: BaseException) -> None:
    futures: list[ServerFuture[object]] = [
        future for bundle in bundles for future in bundle.open_futures
    ]
    for bundle in bundles:
        bundle.futures.clear()
        bundle.whole = None
    for future in futures:
        future.reject(fault)
