"""Submit tasks at a fixed rate in an open loop, and follow their starts and the backlog.

The instant at which a request is due follows from the rate alone. A slow system delays requests,
but not these instants, from which latencies are counted: no omission is coordinated with it.
"""

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import linear_regression
from typing import Any

import psycopg
import requests

from benchmarks.report import quantile
from benchmarks.stand import Stand
from benchmarks.throughput import noop_job

SENDERS = 16
"""Requests that may wait for their answers at once."""

RETRIED = (429, 503)
REQUEST_SECONDS = 30
RETRY_SECONDS = 0.25
SAMPLE_SECONDS = 1.0
GUID_PREFIX = "load-"
DRAIN_SECONDS = 120.0
# The share at the begin that the fit of the backlog leaves out.
LEAD = 0.1
# The bucket of one token is for bursts; a load that lasts minutes takes the units of many users.
SETTINGS = {
    "CELLRUN_MAX_UNFINISHED_TASKS_PER_USER": "10000000",
    "CELLRUN_REQUEST_UNITS_PER_SECOND": "100000",
    "CELLRUN_REQUEST_BURST_UNITS": "1000000",
}

_OPEN = """
SELECT (SELECT count(*) FROM controlplane_task WHERE state = 1 AND NOT attempt_open)
     + (SELECT count(*) FROM controlplane_attempt WHERE released_at IS NULL)
"""
_STARTS = """
SELECT job_id, extract(epoch FROM started_at)::float
FROM controlplane_attempt WHERE job_id BETWEEN %s AND %s AND number = 1 AND started_at IS NOT NULL
"""
_ENDS = """
SELECT floor(extract(epoch FROM finished_at) - %s)::int, count(*)
FROM controlplane_task WHERE job_id BETWEEN %s AND %s AND finished_at IS NOT NULL GROUP BY 1
"""

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Load:
    """A rate for some seconds; each request brings some jobs of some tasks each."""

    tasks_per_second: int
    seconds: float
    jobs_each: int
    tasks_each: int

    @property
    def interval(self) -> float:
        """Seconds between two requests."""
        return self.jobs_each * self.tasks_each / self.tasks_per_second

    @property
    def requests(self) -> int:
        """The number of requests."""
        return max(round(self.seconds / self.interval), 1)

    @property
    def tasks(self) -> int:
        """Tasks of all requests."""
        return self.requests * self.jobs_each * self.tasks_each

    def due_tasks(self, seconds: float) -> int:
        """Return the tasks that are due after so many seconds."""
        count = min(int(seconds / self.interval) + 1, self.requests) if seconds >= 0 else 0
        return count * self.jobs_each * self.tasks_each


@dataclass(slots=True)
class Trace:
    """The course of a load. `due_at`: by job; `backlog`: seconds since the begin and tasks."""

    began_at: float = 0.0
    due_at: dict[int, float] = field(default_factory=dict)
    backlog: list[tuple[float, int]] = field(default_factory=list)
    refused: int = 0
    accepted: int = 0
    latest_request_seconds: float = 0.0
    drain_seconds: float = 0.0


class OpenLoop:
    """A generator of one load on one stand.

    With `is_patient` it outlives failures: jobs have guids, requests without an answer are
    repeated, and processes of the stand may end.
    """

    def __init__(self, stand: Stand, load: Load, *, is_patient: bool = False) -> None:
        self._stand, self._load, self._is_patient = stand, load, is_patient
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._faults: list[BaseException] = []
        self._began = 0.0
        self._connection: Connection | None = None
        self.trace = Trace()

    def run(self) -> Trace:
        """Offer the load, sample the backlog each second, and return when all has ended."""
        threads = [threading.Thread(target=self._send, daemon=True) for _ in range(SENDERS)]
        self.trace.began_at, self._began = time.time(), time.perf_counter()
        try:
            for thread in threads:
                thread.start()
            self._sample()
            self._drain()
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
            if self._connection is not None:
                self._connection.close()
        return self.trace

    def _sample(self) -> None:
        for number in itertools.count(1):
            at = min(number * SAMPLE_SECONDS, self._load.seconds)
            time.sleep(max(self._began + at - time.perf_counter(), 0.0))
            if self._faults:
                raise self._faults[0]
            if not self._is_patient:
                self._stand.check_alive()
            seconds = time.perf_counter() - self._began
            if (count := self._count_backlog()) is not None:
                self.trace.backlog.append((round(seconds, 2), count))
            if at >= self._load.seconds:
                return

    def _count_backlog(self) -> int | None:
        """Return the tasks that are due and not accepted, and those that have not ended."""
        seconds = time.perf_counter() - self._began
        unsent = max(self._load.due_tasks(seconds) - self.trace.accepted, 0)
        count = self._count_open()
        return None if count is None else unsent + count

    def _count_open(self) -> int | None:
        """Return the tasks that have not ended; None while the database does not answer."""
        try:
            if self._connection is None:
                self._connection = self._stand.connect()
            ((count,),) = self._connection.execute(_OPEN)
            return int(count)
        except psycopg.OperationalError:
            if not self._is_patient:
                raise
            self._connection = None
            return None

    def _drain(self) -> None:
        began = time.perf_counter()

        def is_over() -> bool:
            if self._faults:
                raise self._faults[0]
            return self.trace.accepted == self._load.tasks and self._count_open() == 0

        end = began + DRAIN_SECONDS
        while not is_over():
            if not self._is_patient:
                self._stand.check_alive()
            if time.perf_counter() > end:
                raise RuntimeError(f"after {DRAIN_SECONDS:g} s the backlog is not empty")
            time.sleep(0.05)
        self.trace.drain_seconds = time.perf_counter() - began

    def _send(self) -> None:
        load = self._load
        token = self._stand.plan.credentials.submitter_token
        try:
            with requests.Session() as session:
                session.trust_env = False
                session.headers["Authorization"] = f"Bearer {token}"
                for number in self._numbers:
                    if number >= load.requests:
                        return
                    due = number * load.interval
                    if self._stop.wait(max(self._began + due - time.perf_counter(), 0.0)):
                        return
                    late = time.perf_counter() - self._began - due
                    self._note(due, late, self._post(session, self._make_body(number)))
        except BaseException as fault:
            self._faults.append(fault)

    def _make_body(self, number: int) -> list[dict[str, Any]]:
        body = [noop_job(self._load.tasks_each) for _ in range(self._load.jobs_each)]
        if self._is_patient:
            for place, job in enumerate(body):
                job["guid"] = f"{GUID_PREFIX}{number}-{place}"
        return body

    def _post(self, session: requests.Session, body: Sequence[dict[str, Any]]) -> list[int]:
        """Submit until accepted, as a client does; return the jobs."""
        url = f"{self._stand.plan.url}/api/v1/jobs:batch"
        while True:
            try:
                answer = session.post(url, json=body, timeout=REQUEST_SECONDS)
                is_refused = answer.status_code in RETRIED or (
                    self._is_patient and answer.status_code >= 500
                )
            except requests.RequestException:
                if not self._is_patient:
                    raise
                is_refused = True
            if not is_refused:
                answer.raise_for_status()
                return [int(item["id"]) for item in answer.json()["results"]]
            with self._lock:
                self.trace.refused += 1
            if self._stop.wait(RETRY_SECONDS):
                return []

    def _note(self, due: float, late: float, jobs: list[int]) -> None:
        with self._lock:
            self.trace.accepted += len(jobs) * self._load.tasks_each
            self.trace.latest_request_seconds = max(self.trace.latest_request_seconds, late)
            for job in jobs:
                self.trace.due_at[job] = self.trace.began_at + due


def measure(connection: Connection, load: Load, trace: Trace) -> dict[str, Any]:
    """Return the figures of a load that has ended. Raises RuntimeError if a task did not start."""
    keys = [min(trace.due_at), max(trace.due_at)]
    values: list[float] = []
    by_second: dict[int, list[float]] = defaultdict(list)
    for job, started_at in connection.execute(_STARTS, keys):
        if job in trace.due_at:
            milliseconds = 1000 * (started_at - trace.due_at[job])
            values.append(milliseconds)
            by_second[int(trace.due_at[job] - trace.began_at)].append(milliseconds)
    if len(values) != load.tasks:
        raise RuntimeError(f"{len(values)} of {load.tasks} tasks have started")
    values.sort()
    ends: dict[int, int] = dict(connection.execute(_ENDS, [trace.began_at, *keys]).fetchall())
    return {
        "tasks": load.tasks,
        "offered_per_second": load.tasks_per_second,
        "milliseconds": {
            "p50": quantile(values, 0.5),
            "p90": quantile(values, 0.9),
            "p99": quantile(values, 0.99),
            "max": values[-1],
        },
        "by_second": [
            [second, quantile(sorted(of_it), 0.5), quantile(sorted(of_it), 0.99)]
            for second, of_it in sorted(by_second.items())
        ],
        "ended_by_second": list_seconds(ends),
        "backlog": [list(sample) for sample in trace.backlog],
        "backlog_growth": find_growth(trace.backlog) / load.tasks_per_second,
        "refused_requests": trace.refused,
        "latest_request_seconds": trace.latest_request_seconds,
        "drain_seconds": trace.drain_seconds,
    }


def list_seconds(counts: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return the count of each second from the first on, also of those without one."""
    return [(second, counts.get(second, 0)) for second in range(max(counts, default=-1) + 1)]


def find_growth(backlog: Sequence[tuple[float, int]]) -> float:
    """Return the growth of a backlog in tasks a second, by least squares, without the begin."""
    kept = backlog[int(LEAD * len(backlog)) :]
    if len(kept) < 2:
        return 0.0
    seconds, tasks = zip(*kept, strict=True)
    return float(linear_regression(seconds, tasks).slope)
