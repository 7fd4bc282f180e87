"""Keep the jobs whose futures are open, for the threads of a client. Those that end leave."""

import threading
import time
from collections.abc import Callable, Collection, Iterable

from cellrun.api.events import StateChange
from cellrun.futures.bundles import Bundle
from cellrun.futures.promises import ServerFuture

MAX_EARLY_CHANGES = 100_000


class OpenBundles:
    """Jobs by id. Changes of unknown jobs are kept while a submission is under way.

    They may belong to the submitted jobs, whose numbers the response brings later.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_job: dict[int, Bundle] = {}
        self._early: list[StateChange] | None = None
        self._has_overflow = False

    def __len__(self) -> int:
        return len(self._of_job)

    def expect(self) -> None:
        """Keep changes of unknown jobs from now on."""
        with self._lock:
            self._early, self._has_overflow = [], False

    def add(self, bundles: Iterable[Bundle]) -> tuple[list[StateChange], bool]:
        """Add submitted jobs. Return their changes so far, and whether some may be missing."""
        with self._lock:
            for bundle in bundles:
                if bundle.job_id is not None and not bundle.is_over:
                    bundle.last_change = time.monotonic()
                    self._of_job[bundle.job_id] = bundle
            early = [change for change in self._early or () if change.job in self._of_job]
            self._early = None
            return early, self._has_overflow

    def find(self, change: StateChange) -> Bundle | None:
        """Return the job of a change, if it is one of the client's."""
        bundle = self._of_job.get(change.job)
        if bundle is not None:
            return bundle
        with self._lock:
            bundle = self._of_job.get(change.job)
            if bundle is None and self._early is not None:
                if len(self._early) < MAX_EARLY_CHANGES:
                    self._early.append(change)
                else:
                    self._has_overflow = True
            return bundle

    def take(self, bundle: Bundle, future: ServerFuture[object]) -> bool:
        """Remove a future that is done; return whether it was the last one of its job."""
        with self._lock:
            bundle.remove(future)
            is_last = bundle.is_over and bundle.job_id is not None
            if is_last and bundle.job_id is not None:
                is_last = self._of_job.pop(bundle.job_id, None) is not None
            return is_last

    def of_future(self, future: ServerFuture[object]) -> Bundle | None:
        """Return the job of a future that was submitted."""
        return None if future.job_id is None else self._of_job.get(future.job_id)

    def all(self, *, quiet_since: float | None = None) -> list[Bundle]:
        """Return the jobs; with `quiet_since`, those without a change since then."""
        with self._lock:
            found = list(self._of_job.values())
        if quiet_since is None:
            return found
        return [bundle for bundle in found if bundle.last_change < quiet_since]

    def reject_all(self, make_fault: Callable[[], BaseException]) -> None:
        """Set an exception on all futures."""
        for bundle in self.all():
            reject(self, bundle, bundle.open_futures, make_fault)


def reject(
    bundles: OpenBundles,
    bundle: Bundle,
    futures: Collection[ServerFuture[object]],
    make_fault: Callable[[], BaseException],
) -> None:
    """Set an exception on some futures of a job, which then leave it."""
    for future in futures:
        bundles.take(bundle, future)
        future.reject(make_fault())
