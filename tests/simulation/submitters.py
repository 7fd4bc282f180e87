"""Clients that submit, cancel and delete. A call may die at any statement and is repeated."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from django.contrib.auth.models import User
from django.db import connection

from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.jobs.rerun import retry_job
from controlplane.commands.jobs.submit import submit_jobs
from controlplane.commands.retention.deletion import delete_job
from controlplane.contract.states import TaskState as S
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.jobs.concurrency import ConcurrencyKeyFull
from controlplane.domain.jobs.submission import JobsRefused, NameTaken
from controlplane.domain.state.states import TERMINAL
from controlplane.queries.sql import rows
from controlplane.spec import parse_job
from tests.simulation.jobs import End, Submitted
from tests.simulation.keys import find_conflict
from tests.simulation.machines import Surroundings
from tests.simulation.timeline import Killed

NAME = "submitter"
# Statements of a call: it dies at one of them, or lives.
_MOST_STATEMENTS = 30


class Submitters:
    """The submitters of one simulation, and what they know of their jobs."""

    def __init__(
        self, around: Surroundings, owners: Mapping[str, User], jobs: list[Submitted]
    ) -> None:
        self._around = around
        self._owners = owners
        self.jobs: list[Submitted] = []
        self.by_id: dict[int, Submitted] = {}
        self.do_calls_die = True
        # One-off tasks are jobs, too, and are submitted by others.
        self.find_one_off: Callable[[str], Submitted] | None = None
        # Schedules submit theirs, too.
        self.find_scheduled: Callable[[str], Submitted | None] = lambda guid: None
        self.add(jobs)

    def add(self, jobs: Iterable[Submitted]) -> None:
        """Add these jobs to the plan of requests."""
        after = self._around.timeline.after
        for job in jobs:
            job.key = f"{job.name}-as-{len(self.jobs)}"
            self.jobs.append(job)
            begin = self._submit if job.retries is None else self._retry
            after(job.at, partial(self._call, partial(begin, job)))
            if job.cancel_at is not None:
                after(job.cancel_at, partial(self._call, partial(self._cancel, job)))
            if job.delete_at is not None:
                after(job.delete_at, partial(self._call, partial(self._delete, job)))

    def find(self, job_id: int) -> Submitted:
        """Find the job with that id; its submitter may have died before the response."""
        if job_id not in self.by_id:
            statement = "SELECT guid, is_one_off FROM controlplane_job WHERE id = %s"
            ((guid, is_one_off),) = rows(statement, [job_id])
            if is_one_off and self.find_one_off is not None:
                job = self.by_id[job_id] = self.find_one_off(guid)
            elif scheduled := self.find_scheduled(guid):
                job = self.by_id[job_id] = scheduled
            else:
                job = self.by_id[job_id] = next(job for job in self.jobs if job.key == guid)
            if job.retries is not None and not job.body["groups"]:
                # The client of the retry died before the response: the groups are the same.
                job.body["groups"] = job.retries.body["groups"]
        return self.by_id[job_id]

    def id_of(self, job: Submitted) -> int | None:
        """Return the job's id, even if no client has received it."""
        found = rows("SELECT id FROM controlplane_job WHERE guid = %s", [job.key])
        return job.job_id or (found[0][0] if found else None)

    def what_is_left(self) -> list[str]:
        """Calls that were not answered yet, in words."""
        taken = [job for job in self.jobs if not job.refused]
        return [f"job {job.name} is not submitted" for job in taken if job.job_id is None] + [
            f"job {job.job_id} is not deleted"
            for job in taken
            if job.delete_at is not None and job.end is None and not job.is_kept
        ]

    # ------------------------------------------------------------------ inside

    def _call(self, action: Callable[[], None]) -> None:
        rng = self._around.rng
        try:
            if self.do_calls_die and rng.random() < 0.1:
                with killed_after(rng.randrange(_MOST_STATEMENTS)):
                    action()
            else:
                action()
        except Killed:
            self._around.note("a call dies")
            self._again(action, 3.0)

    def _again(self, action: Callable[[], None], longest: float) -> None:
        seconds = self._around.rng.uniform(0.1, longest)
        self._around.timeline.after(seconds, lambda: self._call(action))

    def _submit(self, job: Submitted) -> None:
        if any(other.name == job.name and other.is_open for other in self._before(job)):
            self._again(partial(self._submit, job), 3.0)
            return
        if not job.links:
            job.links = _links_of(job)
        body = {**job.body, "guid": job.key, **job.links}
        is_there = _is_there(job)
        if not is_there:
            job.replaces = self._find_replaced(job)
        stopped = [] if is_there else [self.find(job_id) for job_id in find_conflict(job)[1]]
        why = _why_not(job)
        try:
            (made,) = submit_jobs(
                specs=[parse_job(body)],
                bodies=[body],
                owner=self._owners[job.owner],
                now=self._around.timeline.datetime(),
            )
        except (JobsRefused, NameTaken, ConcurrencyKeyFull) as error:
            job.refused = str(error)
            self._around.note(f"job {job.name} is refused: {error}")
            # What it names may have been kept for its time just now.
            if not why and not _why_not(job):
                raise AssertionError(f"job {job.name} is refused without cause") from error
            return
        assert is_there or not why, f"job {made.job_id} is taken, but {why}"
        job.job_id = made.job_id
        if self.find(made.job_id) is not job:
            job.is_kept, job.results = True, {}
        for other in [*job.replaces, *stopped] if not job.is_kept else ():
            other.is_replaced = True
        self._around.note(f"job {made.job_id} ({job.name}) is submitted: {_words(body)}")

    def _retry(self, job: Submitted) -> None:
        assert job.retries is not None
        other = job.retries
        end = load_end(other.job_id)
        is_gone = other.end is not None or (end is None and other.seen is not None)
        if other.refused or is_gone:
            job.refused = "what it retries is not there"
            return
        if other.job_id is None or end is None or end.settled_at is None:
            self._again(partial(self._retry, job), 20.0)
            return
        try:
            now = self._around.timeline.datetime()
            made = retry_job(job_id=other.job_id, guid=job.key, actor=NAME, now=now)
        except (Conflict, NotFound) as error:
            is_deleted = isinstance(error, NotFound) and not _is_there(other)
            if not is_deleted and not _is_complete(other.job_id):
                raise AssertionError(f"job {other.job_id} is not retried: {error}") from error
            job.refused = str(error)
            return
        job.job_id = made.job_id
        job.body = _read_body(made.job_id)
        self.by_id[made.job_id] = job
        self._around.note(f"job {other.job_id} is retried as job {made.job_id}")

    def _before(self, job: Submitted) -> list[Submitted]:
        return self.jobs[: self.jobs.index(job)]

    def _find_replaced(self, job: Submitted) -> list[Submitted]:
        if job.body.get("existing_job_policy") != "replace":
            return []
        found = rows(
            "SELECT id FROM controlplane_job WHERE name = %s AND finished_at IS NULL ORDER BY id",
            [job.name],
        )
        return [self.find(job_id) for (job_id,) in found]

    def _cancel(self, job: Submitted) -> None:
        if job.refused or job.is_kept:
            return
        if job.job_id is None:
            self._again(partial(self._cancel, job), 5.0)
            return
        self._around.note(f"job {job.job_id} is cancelled")
        try:
            cancel_job(
                job_id=job.job_id,
                reason="enough",
                force=self._around.rng.random() < 0.3,
                actor=NAME,
                now=self._around.timeline.datetime(),
            )
        except NotFound:
            is_kept_for_its_time = "ttl_seconds_after_finished" in job.body and job.seen is not None
            assert job.end is not None or is_kept_for_its_time, (
                f"job {job.job_id} is not found, but no client deleted it"
            )

    @staticmethod
    def _is_retried(job_id: int) -> bool:
        """Whether a retry of it, or of a retry, has not ended."""
        statement = """
            WITH RECURSIVE retry AS (
                SELECT id, finished_at FROM controlplane_job WHERE retry_of_id = %s
                UNION ALL
                SELECT j.id, j.finished_at FROM controlplane_job j
                JOIN retry ON j.retry_of_id = retry.id
            )
            SELECT 1 FROM retry WHERE finished_at IS NULL
            """
        return bool(rows(statement, [job_id]))

    def _delete(self, job: Submitted) -> None:
        if job.refused or job.is_kept or job.end is not None:
            return
        # Gone already: the call before this one died when its work was done.
        end = load_end(job.job_id) or job.seen
        if job.job_id is None or end is None:
            self._again(partial(self._delete, job), 20.0)
            return
        job.seen = end
        try:
            delete_job(job_id=job.job_id, actor=NAME, now=self._around.timeline.datetime())
        except Conflict:
            is_read = self._is_retried(job.job_id)
            assert is_read or end.state not in TERMINAL, f"job {job.job_id} has ended, but stays"
            self._again(partial(self._delete, job), 20.0)
            return
        except NotFound:
            pass
        assert end.state in TERMINAL, f"job {job.job_id} is deleted, but has not ended"
        job.end = end
        self._around.note(f"job {job.job_id} is deleted")


def load_end(job_id: int | None) -> End | None:
    """How the job ended, or stands; None if it is gone."""
    found = rows(
        """
        SELECT state, failure_reason, started_at IS NOT NULL, settled_at
        FROM controlplane_job WHERE id = %s
        """,
        [job_id],
    )
    return End(S(found[0][0]), *found[0][1:]) if found else None


def _read_body(job_id: int) -> dict[str, Any]:
    """The body of a job that was not submitted, with its own minima and numbers of tasks."""
    ((text, minimum),) = rows(
        "SELECT spec, min_available FROM controlplane_job WHERE id = %s", [job_id]
    )
    body: dict[str, Any] = json.loads(text)
    found = rows(
        "SELECT name, task_count, min_available FROM controlplane_taskgroup WHERE job_id = %s",
        [job_id],
    )
    counts = {name: {"replicas": count, "min_available": least} for name, count, least in found}
    groups = [{**group, **counts[group["name"]]} for group in body["groups"]]
    return {**body, "groups": groups, "min_available": minimum}


def _is_complete(job_id: int) -> bool:
    """Whether nothing of the job is left to retry."""
    statement = "SELECT 1 FROM controlplane_task WHERE job_id = %s AND state <> %s LIMIT 1"
    return not rows(statement, [job_id, int(S.SUCCEEDED)])


def _links_of(job: Submitted) -> dict[str, Any]:
    links: dict[str, Any] = {}
    if job.waits:
        links["depends_on"] = [
            {"job": other.job_id or other.key, "until": until} for other, until in job.waits
        ]
    if job.parent is not None:
        links["parent"] = job.parent.job_id or job.parent.key
    return links


_SUMMARY_FIELDS = ("depends_on", "parent", "existing_job_policy")


def _words(body: dict[str, Any]) -> str:
    links = [f"{key} {body[key]}" for key in _SUMMARY_FIELDS if key in body]
    return "; ".join([*(" ".join(group["command"]) for group in body["groups"]), *links])


def _why_not(job: Submitted) -> str:
    """Return why the job may not be taken just now, by the rows."""
    for other, _ in job.waits:
        if not _is_there(other):
            return f"job {other.name}, which it names, is not there"
    if job.parent is not None:
        found = rows(
            "SELECT state, ending_as FROM controlplane_job WHERE guid = %s AND deleted_at IS NULL",
            [job.parent.key],
        )
        if not found or S(found[0][0]) in TERMINAL or found[0][1] is not None:
            return "its parent is not there, has ended or is ending"
    if full := find_conflict(job)[0]:
        return full
    if job.body.get("existing_job_policy") == "error":
        found = rows(
            "SELECT id FROM controlplane_job WHERE name = %s AND finished_at IS NULL", [job.name]
        )
        return f"job {found[0][0]} has its name" if found else ""
    return ""


def _is_there(job: Submitted) -> bool:
    statement = "SELECT 1 FROM controlplane_job WHERE guid = %s AND deleted_at IS NULL"
    return bool(rows(statement, [job.key]))


@contextmanager
def killed_after(statements: int) -> Iterator[None]:
    """Kill the calling process at one of its statements."""
    left = statements

    def count(execute: Callable[..., Any], *args: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        return execute(*args)

    with connection.execute_wrapper(count):
        yield
