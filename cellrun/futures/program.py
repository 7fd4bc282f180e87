"""The client of a program: submits jobs as futures, all resolved by one stream of events."""

import logging
import threading
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from cellrun.api.events import StateChange
from cellrun.documents import Job as JobDocument
from cellrun.errors import BadInput
from cellrun.futures.bundles import Bundle, BundleMaker, PendingCall
from cellrun.futures.failures import ClientStopped
from cellrun.futures.jobs import Job
from cellrun.futures.open_bundles import OpenBundles
from cellrun.futures.promises import ServerFuture
from cellrun.futures.reader import OutcomeReader
from cellrun.futures.results import CommandResult
from cellrun.futures.submitter import Submitter
from cellrun.futures.threads import Patience
from cellrun.futures.tracker import EventTracker
from cellrun.settings import ClientSettings, load_settings

LINGER_SECONDS = 0.01
PATIENCE_SECONDS = 3600.0
USUAL_PROJECT = "default/default"
MOST_NAMED_JOBS = 20

log = logging.getLogger("cellrun")


class Client:
    """Submits work of one project. Use it as a context manager, or call `close`.

    `patience_seconds`: how long an unavailable server is tried again. Three threads, which all
    futures share, submit, follow the changes, and read results.
    """

    def __init__(
        self,
        settings: ClientSettings | None = None,
        *,
        project: str | None = None,
        linger_seconds: float = LINGER_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self.settings = load_settings() if settings is None else settings
        self.project = project or USUAL_PROJECT
        self._bundles = OpenBundles()
        self._fault: BaseException | None = None
        self._patience = Patience(patience_seconds)
        self._lock = threading.Lock()
        self._is_started = False
        self._is_closed = False
        self._reader = OutcomeReader(
            self.settings, self._bundles, patience=self._patience, on_fault=self._fail
        )
        self._tracker = EventTracker(
            self.settings,
            self._bundles,
            project=self.project,
            patience_seconds=patience_seconds,
            on_end=self._end,
            on_gap=self._reader.compare,
            on_fault=self._fail,
        )
        self._submitter = Submitter(
            self.settings,
            linger_seconds=linger_seconds,
            patience=self._patience,
            is_ready=self._tracker.connected.wait,
            on_expect=self._bundles.expect,
            on_accept=self._accept,
            on_fault=self._fail,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def submit(self, job: Job) -> ServerFuture[JobDocument]:
        """Submit a job; its result is its document. A failure raises JobFailed.

        A job of a present guid is followed to its end. Raise BadInput once the client is closed.
        """
        future: ServerFuture[JobDocument] = ServerFuture(self.withdraw)
        document = {"guid": f"python/{uuid.uuid4()}", **job.document(), **self.place()}
        self._put(Bundle(document, whole=future, size=len(str(document))))
        return future

    def put(self, call: PendingCall, make: BundleMaker) -> None:
        """Submit a call of an executor. Raise BadInput once the client is closed."""
        self._put((call, make))

    def place(self) -> dict[str, Any]:
        """Return the domain and the project of all jobs."""
        domain, _, name = self.project.rpartition("/")
        return {"domain": domain or "default", "project": name}

    def withdraw(self, future: ServerFuture[Any]) -> None:
        """Drop a cancelled future, and cancel its job once no other future of it is open."""
        bundle = self._bundles.of_future(future)
        if bundle is not None and bundle.job_id is not None and self._bundles.take(bundle, future):
            self._reader.cancel(bundle.job_id)

    def close(self) -> None:
        """Submit and cancel what is pending, and end. Open futures raise BadInput; jobs continue.

        What an unavailable server does not accept within CLOSING_SECONDS is given up: a warning
        names the jobs that are not cancelled.
        """
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
        if not is_first or not self._is_started:
            return
        self._patience.shorten()
        self._submitter.close()
        self._submitter.join(self._patience.left())
        self._tracker.close()
        self._reader.close()
        self._reader.join(self._patience.left())
        self._tracker.join(self._patience.left())
        fault = BadInput("the client was closed before the work ended, which continues")
        self._submitter.reject_all(fault)
        self._bundles.reject_all(lambda: fault)
        if left := self._reader.not_cancelled:
            named = " ".join(map(str, left[:MOST_NAMED_JOBS]))
            jobs = "a job was" if len(left) == 1 else f"{len(left)} jobs were"
            log.warning("%s not cancelled: run cellrun cancel %s", jobs, named)

    def _put(self, item: tuple[PendingCall, BundleMaker] | Bundle) -> None:
        with self._lock:
            if self._is_closed:
                raise BadInput("the client is closed")
            if self._fault is not None:
                raise ClientStopped(self._fault) from self._fault
            if not self._is_started:
                self._is_started = True
                self._start()
            self._submitter.put(item)

    def _start(self) -> None:
        try:
            for part in (self._tracker, self._reader, self._submitter):
                part.start()
        except BaseException as fault:  # no thread can be started, or Ctrl-C meanwhile
            self._fault = fault
            raise

    def _accept(self, bundles: Sequence[Bundle]) -> None:
        early, has_gap = self._bundles.add(bundles)
        for bundle in bundles:
            for future in bundle.open_futures:
                if future.cancelled():
                    self.withdraw(future)
        for change in early:
            self._tracker.apply(change)
        if self._fault is not None:
            self._fail(self._fault)
            return
        # A job of a present guid may have ended before.
        unsure = bundles if has_gap else [one for one in bundles if one.whole is not None]
        if unsure:
            self._reader.compare(unsure)

    def _end(self, bundle: Bundle, change: StateChange) -> None:
        place = "" if change.task is None else change.task.rpartition("/")[2]
        if place == "" or bundle.reads or change.after != "SUCCEEDED":
            self._reader.read(bundle, place)
            return
        future = bundle.futures.get(place)
        if future is not None:
            self._bundles.take(bundle, future)
            address = f"{bundle.job_id}/{place}"
            future.resolve(CommandResult(address, 0, None, self.settings))

    def _fail(self, fault: BaseException) -> None:
        """Set an exception on all futures, since a thread has ended, and accept no more."""
        with self._lock:
            self._fault = self._fault or fault
        self._submitter.reject_all(fault)
        self._bundles.reject_all(lambda: fault)
