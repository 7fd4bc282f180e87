"""Read how tasks and jobs ended, many at once, and cancel jobs, in one thread."""

import queue
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from cellrun.api.polling import TOO_MANY_REQUESTS, TRANSIENT, PollInterval
from cellrun.api.session import Session
from cellrun.errors import ApiError, ClientError, Unreachable
from cellrun.futures import functions, task_program
from cellrun.futures.bundles import Bundle
from cellrun.futures.failures import BadResult, JobFailed, JobGone, TaskFailed
from cellrun.futures.open_bundles import OpenBundles, reject
from cellrun.futures.promises import ServerFuture
from cellrun.futures.results import CommandResult
from cellrun.futures.threads import ClientThread, Patience
from cellrun.settings import ClientSettings
from cellrun.states import TERMINAL_STATES

QUIET_SECONDS = 60.0
"""Without a change for this long, jobs are read: some may have been deleted."""
MOST_AT_ONCE = 2_000
MOST_SINGLE_READS = 3
"""Tasks of a job that are read one by one; with more, all ended tasks of the job are."""
NOT_FOUND, CONFLICT = 404, 409
SHORT = (*TRANSIENT, TOO_MANY_REQUESTS)
TASK_FIELDS = "id,job,group,index,state,exit_code,failure_reason,result,attempt_uid"
ENDED = ",".join(sorted(TERMINAL_STATES))

TaskEnd = Mapping[str, Any]


class OutcomeReader:
    """The thread. It ends when `close` was called and nothing is left to do."""

    def __init__(
        self,
        settings: ClientSettings,
        bundles: OpenBundles,
        *,
        patience: Patience,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._settings, self._bundles = settings, bundles
        self._patience = patience
        self._work: queue.SimpleQueue[Callable[[Session], None] | tuple[Bundle, str] | None] = (
            queue.SimpleQueue()
        )
        self._cancelling: set[int] = set()
        self._thread = ClientThread(self._run, "cellrun-outcomes", on_fault)

    def start(self) -> None:
        """Read until `close`."""
        self._thread.start()

    def read(self, bundle: Bundle, place: str) -> None:
        """Read how the task at `place` of a job ended; with an empty place, the job."""
        self._work.put((bundle, place))

    def cancel(self, job_id: int) -> None:
        """Cancel a job of which no future is open."""
        self._cancelling.add(job_id)
        self._work.put(lambda session: self._cancel(session, job_id))

    def compare(self, bundles: Sequence[Bundle] | None = None) -> None:
        """Compare jobs, or all open ones, with the server: changes may have been missed."""
        self._work.put(
            lambda session: self._compare(
                session, self._bundles.all() if bundles is None else bundles
            )
        )

    def close(self) -> None:
        """End when all that was requested is done."""
        self._work.put(None)

    def join(self, seconds: float) -> bool:
        """Return whether the thread has ended, at the latest after so many seconds."""
        return self._thread.join(seconds)

    @property
    def not_cancelled(self) -> list[int]:
        """Return the jobs whose cancellation the server has not accepted."""
        return sorted(self._cancelling.copy())

    def _run(self) -> None:
        with Session(self._settings) as session:
            is_closed = False
            while not is_closed:
                ends: dict[int, tuple[Bundle, set[str]]] = {}
                for item in self._next():
                    if item is None:
                        is_closed = True
                    elif isinstance(item, tuple):
                        bundle, place = item
                        ends.setdefault(id(bundle), (bundle, set()))[1].add(place)
                    else:
                        self._patiently(session, item)
                for bundle, places in ends.values():
                    self._read(session, bundle, places)

    def _next(self) -> list[Any]:
        """Return work, as much as there is; that of a quiet time, if there is none for long."""
        try:
            found = [self._work.get(timeout=QUIET_SECONDS)]
        except queue.Empty:
            quiet = self._bundles.all(quiet_since=time.monotonic() - QUIET_SECONDS)
            return [lambda session: self._compare(session, quiet)] if quiet else []
        while len(found) < MOST_AT_ONCE:
            try:
                found.append(self._work.get_nowait())
            except queue.Empty:
                break
        return found

    def _patiently(self, session: Session, request: Callable[[Session], None]) -> None:
        """Repeat a request while the server is unavailable; a refusal ends it."""
        pace = PollInterval(None)
        since = time.monotonic()
        while not self._patience.has_ended:
            try:
                return request(session)
            except Unreachable:
                if self._patience.is_over(since):
                    return None
            except ApiError as fault:
                if fault.status not in SHORT or self._patience.is_over(since):
                    return None
            pace.rest(f"server {session.url}")
        return None

    def _read(self, session: Session, bundle: Bundle, places: Collection[str]) -> None:
        faults: list[ClientError] = []

        def request(session: Session) -> None:
            faults.clear()
            try:
                if "" in places:
                    self._read_job(session, bundle)
                if wanted := {place for place in places if place in bundle.futures}:
                    self._read_tasks(session, bundle, wanted)
            except ClientError as fault:
                faults.append(fault)
                raise

        self._patiently(session, request)
        if faults:
            futures = _at(bundle, places)
            if "" in places and bundle.whole is not None:
                futures.append(bundle.whole)
            reject(self._bundles, bundle, futures, lambda: faults[0])

    def _read_job(self, session: Session, bundle: Bundle) -> None:
        future, job_id = bundle.whole, bundle.job_id
        if future is None or job_id is None:
            return
        job = session.job(job_id)
        self._bundles.take(bundle, future)
        if job["state"] == "SUCCEEDED":
            future.resolve(job)
        else:
            future.reject(JobFailed(job_id, job["state"], job["failure_reason"]))

    def _read_tasks(self, session: Session, bundle: Bundle, places: Collection[str]) -> None:
        assert bundle.job_id is not None
        found = self._find_tasks(session, bundle.job_id, places)
        left = set(places)
        for task in found:
            place = f"{task['group']}.{task['index']}"
            if place in left:
                left.discard(place)
                self._settle(session, bundle, place, task)
        if left and not list(session.jobs_by_id([bundle.job_id], fields="id")):
            job_id = bundle.job_id
            reject(self._bundles, bundle, _at(bundle, left), lambda: JobGone(job_id))

    def _find_tasks(
        self, session: Session, job_id: int, places: Collection[str]
    ) -> Iterable[Mapping[str, Any]]:
        if len(places) > MOST_SINGLE_READS:
            yield from session.tasks_of_jobs([job_id], state=ENDED, fields=TASK_FIELDS)
            return
        for place in places:
            group, _, index = place.rpartition(".")
            yield from session.tasks(job_id, group=group, index=int(index), state=ENDED)

    def _settle(self, session: Session, bundle: Bundle, place: str, task: TaskEnd) -> None:
        """Resolve the future of an ended task."""
        future = bundle.futures.get(place)
        if future is None:
            return
        address = f"{bundle.job_id}/{place}"
        try:
            content = self._content_of(session, address, task) if bundle.is_function else None
        except ApiError as fault:
            if fault.status in SHORT:
                raise
            # The outcomes of the other tasks can be read.
            reject(self._bundles, bundle, [future], lambda fault=fault: fault)  # type: ignore[misc]
            return
        try:
            result = self._result_of(bundle, address, task, content)
        except BaseException as fault:  # what the function raised there is raised here
            self._bundles.take(bundle, future)
            future.reject(fault)
        else:
            self._bundles.take(bundle, future)
            future.resolve(result)

    def _result_of(
        self, bundle: Bundle, address: str, task: TaskEnd, content: bytes | None
    ) -> object:
        """Return the result of a task, or raise its exception or TaskFailed."""
        is_success = task["state"] == "SUCCEEDED"
        if content is not None:
            return functions.unpack(content, address)
        if not is_success:
            raise TaskFailed(address, task["state"], task["failure_reason"], task["exit_code"])
        if bundle.is_function:
            raise BadResult(f"task {address} ended without the result of its function")
        return CommandResult(address, task["exit_code"] or 0, task["result"], self._settings)

    def _content_of(self, session: Session, address: str, task: TaskEnd) -> bytes | None:
        """Return what a function left: its result, or an output; None if it left none."""
        if task["result"]:
            return task["result"].encode()
        uid, name = task["attempt_uid"], f"value/{task_program.STORED}"
        if uid is None:
            return None
        if not any(item["name"] == name for item in session.artifacts(uid)):
            return None
        return b"".join(session.read_artifact(uid, name))

    def _cancel(self, session: Session, job_id: int) -> None:
        try:
            session.cancel_job(job_id, reason="the program cancelled its futures")
        except ApiError as fault:
            if fault.status not in (NOT_FOUND, CONFLICT):
                raise
        self._cancelling.discard(job_id)

    def _compare(self, session: Session, bundles: Collection[Bundle]) -> None:
        by_id = {bundle.job_id: bundle for bundle in bundles if bundle.job_id is not None}
        states = {job["id"]: job["state"] for job in session.jobs_by_id(by_id, fields="id,state")}
        for job_id, bundle in by_id.items():
            bundle.last_change = time.monotonic()
            if job_id not in states:
                gone = bundle.open_futures
                reject(self._bundles, bundle, gone, lambda job_id=job_id: JobGone(job_id))  # type: ignore[misc]
            elif bundle.whole is not None and states[job_id] in TERMINAL_STATES:
                self.read(bundle, "")
        with_tasks = {i: b for i, b in by_id.items() if b.futures and i in states}
        fields, limit = "job,group,index", 10_000 * len(bundles)
        if with_tasks:
            for task in session.tasks_of_jobs(
                with_tasks, state=ENDED, fields=fields, limit=max(limit, 1_000)
            ):
                self.read(with_tasks[task["job"]], f"{task['group']}.{task['index']}")


def _at(bundle: Bundle, places: Iterable[str]) -> list[ServerFuture[Any]]:
    """Return the open futures at some places, which another thread may cancel meanwhile."""
    found = (bundle.futures.get(place) for place in places)
    return [future for future in found if future is not None]
