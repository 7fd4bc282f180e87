"""A mixed load on a stand: submissions, ends of all kinds, operations on jobs, and reads."""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks.copies import BASE, Connection
from benchmarks.pages import Browser
from benchmarks.stand import Stand, Unavailable
from benchmarks.throughput import noop_job, wait_for_jobs

JOBS_PER_SECOND = 20
LARGE_JOB = 1_000
WAITING_JOBS, WAITING_TASKS = 20, 100
RUNNING_TASKS = 640
BURST_JOBS = 10
READERS = 2
PAUSE_SECONDS = 0.05
PAGE_SECONDS = 1.0

READS = (
    "/api/v1/jobs",
    "/api/v1/jobs?state=running,pending",
    "/api/v1/jobs?state=failed",
    "/api/v1/jobs?name=noop",
    "/api/v1/jobs?search=noop",
    "/api/v1/jobs?label=kind=plans",
    "/api/v1/jobs?since={since}",
    "/api/v1/tasks",
    "/api/v1/tasks?state=succeeded",
    "/api/v1/tasks?state=failed",
    "/api/v1/tasks?state=pending",
    "/api/v1/tasks?cell=fleet-001",
    "/api/v1/tasks?job={job}",
    f"/api/v1/tasks?job={BASE}",
    f"/api/v1/jobs/{BASE}",
    f"/api/v1/jobs/{BASE}/tasks?state=succeeded",
    f"/api/v1/jobs/{BASE}/history",
    "/api/v1/jobs/{job}",
    "/api/v1/jobs/{job}/tasks",
    "/api/v1/jobs/{job}/history?merged=true",
    "/api/v1/tasks/{task}",
    "/api/v1/tasks/{task}/attempts",
    "/api/v1/tasks/{task}/explain",
    "/api/v1/tasks/{task}/history",
    "/api/v1/cells",
    "/api/v1/pools",
    "/api/v1/pools/default/queue",
    "/api/v1/quotas",
    "/api/v1/alerts",
    "/api/v1/audit",
    "/api/v1/events?since={since}&follow=false",
    "/api/v1/usage",
    "/metrics",
)
PAGES = (
    "/admin/",
    "/admin/controlplane/job/",
    "/admin/controlplane/task/",
    "/admin/controlplane/attempt/",
    "/admin/controlplane/cell/",
)
_ENDS = (
    ["noop"],
    ["sleep", "2"],
    ["fail-first", "1"],
    ["exit", "3"],
    ["build", "1", "sleep", "1"],
    ["result", "done"],
)


class MixedLoad:
    """Runs for some seconds in threads of its own."""

    def __init__(self, stand: Stand, seconds: float) -> None:
        self._stand, self._seconds = stand, seconds
        self._stop = threading.Event()
        self._faults: list[BaseException] = []
        self._newest = self.requests = 0

    def run(self) -> None:
        """Offer the load, and raise the first failure of a request."""
        make_open_work(self._stand)
        self._newest = int(self._stand.post("/api/v1/jobs", _labelled(["noop"], 10))["id"])
        works = [self._submit, self._browse, *[self._read] * READERS]
        threads = [threading.Thread(target=self._guard, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        self._stop.wait(self._seconds)
        self._stop.set()
        for thread in threads:
            thread.join()
        if self._faults:
            raise self._faults[0]

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as fault:
            self._faults.append(fault)
            self._stop.set()

    def _submit(self) -> None:
        """Submit jobs each second; end, retry and delete others."""
        stand = self._stand
        ends = itertools.cycle(_ENDS)
        for second in itertools.count():
            batch = [_labelled(next(ends), 1) for _ in range(JOBS_PER_SECOND)]
            found = stand.post("/api/v1/jobs:batch", batch)["results"]
            self._newest = int(found[0]["id"])
            if second % 5 == 0:
                stand.post("/api/v1/jobs", _labelled(["noop"], LARGE_JOB))
            if second % 10 == 3:
                first = stand.post("/api/v1/jobs", _labelled(["sleep", "60"], LARGE_JOB))["id"]
                after = {"depends_on": [{"job": first, "until": "finished"}]}
                stand.post("/api/v1/jobs", {**_labelled(["noop"], LARGE_JOB), **after})
                self._stop.wait(1.0)
                stand.post(f"/api/v1/jobs/{first}/cancel", {})
            if second % 10 == 7:
                self._rerun_failed()
            if self._stop.wait(1.0):
                return

    def _rerun_failed(self) -> None:
        for job in self._stand.get("/api/v1/jobs?state=failed&limit=5")["results"]:
            self._stand.post(f"/api/v1/jobs/{job['id']}/retry", {})

    def _read(self) -> None:
        for path in itertools.cycle(READS):
            self._get(path)
            if self._stop.wait(PAUSE_SECONDS):
                return

    def _get(self, path: str) -> None:
        # The search for changes begins a minute earlier, and is refused beyond 100,000 rows.
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 5))
        if "{task}" in path:
            tasks = self._stand.get(f"/api/v1/tasks?job={self._newest}")["results"]
            path = path.replace("{task}", str(tasks[0]["id"]))
        path = path.replace("{job}", str(self._newest)).replace("{since}", since)
        # A stream of events waits for transactions that are open, also those of the benchmark.
        with contextlib.suppress(Unavailable):
            self._stand.read(path)
        self.requests += 1

    def _browse(self) -> None:
        browser = Browser(self._stand)
        browser.log_in()
        for path in itertools.cycle(PAGES):
            browser.get(path)
            if self._stop.wait(PAGE_SECONDS):
                return


def make_open_work(stand: Stand) -> None:
    """Submit tasks that run on, and tasks that no cell can take."""
    stand.post("/api/v1/jobs", _labelled(["sleep", "3600"], RUNNING_TASKS))
    large = {"cpu": 100, "memory": "16Mi", "disk": "1Mi"}
    waiting = {**_labelled(["noop"], WAITING_TASKS), "resources": large}
    stand.post("/api/v1/jobs:batch", [{**waiting, "allow_unsatisfiable": True}] * WAITING_JOBS)


def run_burst(stand: Stand, connection: Connection, tasks: int) -> None:
    """Submit new jobs at once, and return when all have ended."""
    jobs = [noop_job(tasks // BURST_JOBS) for _ in range(BURST_JOBS)]
    wait_for_jobs(stand, connection, [stand.post("/api/v1/jobs", job)["id"] for job in jobs])


def _labelled(command: list[str], replicas: int) -> dict[str, Any]:
    job = {**noop_job(replicas), "command": command, "labels": {"kind": "plans"}}
    return {**job, "retries": {"failure": 2}}
