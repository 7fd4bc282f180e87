"""Find jobs and array tasks by ids, names, owners and states; all requests of lists are here."""

import getpass
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from cellrun import Session
from slurm_commands.arrays import JobAddress, TaskArray, read_array
from slurm_commands.job_document import ARRAY_LABEL, NAME_LABEL, name_label
from slurm_commands.states import SlurmState, state_of

# Without ids or names, at most so many of the newest jobs are listed.
MOST_JOBS = 10_000
# What the lists show of a task.
TASK_FIELDS = (
    "id,job,index,state,pending_reason,failure_reason,exit_code,cell_id,started_at,finished_at"
)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which jobs to list; an empty field does not restrict. `states` are those of Cellrun."""

    addresses: Sequence[JobAddress] = ()
    names: Sequence[str] = ()
    owners: Sequence[str] = ()
    pools: Sequence[str] = ()
    projects: Sequence[str] = ()
    states: str | None = None
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class JobRow:
    """A line of a list: a job, or one task of an array with its index.

    `task` is None if it was not requested, or if the job has several and no array.
    """

    job: Mapping[str, Any]
    task: Mapping[str, Any] | None = None
    index: int | None = None

    @property
    def id(self) -> str:
        """Return the id as Slurm writes it: 12, or 12_3 for an array task."""
        return str(self.job["id"]) + ("" if self.index is None else f"_{self.index}")

    @property
    def state(self) -> SlurmState:
        """Return the state of Slurm."""
        return state_of(self.job, self.task)

    @property
    def name(self) -> str:
        """Return the name as it was submitted."""
        return str(self.job["labels"].get(NAME_LABEL) or self.job["name"])


def find_jobs(session: Session, selection: Selection) -> list[Mapping[str, Any]]:
    """Return the selected jobs, the newest first."""
    found: dict[int, Mapping[str, Any]] = {}
    for jobs in _requests(session, selection):
        for job in islice(jobs, MOST_JOBS):
            if selection.since and datetime.fromisoformat(job["created_at"]) < selection.since:
                break
            if _matches(job, selection):
                found[job["id"]] = job
    return [found[job_id] for job_id in sorted(found, reverse=True)]


def find_rows(session: Session, selection: Selection, *, with_tasks: bool = False) -> list[JobRow]:
    """Return the lines of the selected jobs and array tasks.

    `with_tasks`: with the task of each job; else only where its state needs it.
    """
    jobs = find_jobs(session, selection)
    needed = [job for job in jobs if with_tasks or _needs_tasks(job)]
    tasks = _find_tasks(session, needed)
    rows = [row for job in jobs for row in _rows_of(job, tasks.get(job["id"], []))]
    if not selection.addresses:
        return rows
    wanted = {(address.job_id, address.index) for address in selection.addresses}
    return [row for row in rows if {(row.job["id"], None), (row.job["id"], row.index)} & wanted]


def owner_of(session: Session, user: str) -> str:
    """Return the name of a user at Cellrun: for the user of this shell, that of the token."""
    return str(session.whoami()["user"]) if user == getpass.getuser() else user


def array_of(job: Mapping[str, Any]) -> TaskArray | None:
    """Return the array of a job; None if it is not one of sbatch."""
    text = job["labels"].get(ARRAY_LABEL)
    return read_array(text) if text else None


def _requests(session: Session, selection: Selection) -> Iterator[Iterator[Mapping[str, Any]]]:
    """Yield requests that together find the selected jobs."""
    if selection.addresses:
        yield session.jobs_by_id({address.job_id for address in selection.addresses})
        return
    base = {"state": selection.states}
    if len(selection.pools) == 1:
        base["pool"] = selection.pools[0]
    owners: list[str | None] = [owner_of(session, user) for user in selection.owners]
    labels: list[str | None] = [f"{NAME_LABEL}={name_label(name)}" for name in selection.names]
    for owner in owners or [None]:
        for label in labels or [None]:
            yield session.jobs(limit=MOST_JOBS, **base, owner=owner, label=label)


def _matches(job: Mapping[str, Any], selection: Selection) -> bool:
    projects = (job["project"], f"{job['domain']}/{job['project']}")
    return (not selection.pools or job["pool"] in selection.pools) and (
        not selection.projects or any(name in selection.projects for name in projects)
    )


def _needs_tasks(job: Mapping[str, Any]) -> bool:
    """Whether the state of Slurm follows from the tasks only: arrays, limits of time and memory."""
    return ARRAY_LABEL in job["labels"] or job["state"] in ("FAILED", "KILLED")


def _find_tasks(
    session: Session, jobs: Sequence[Mapping[str, Any]]
) -> dict[int, list[Mapping[str, Any]]]:
    """Return the tasks of jobs by id, in the order of their index."""
    found: dict[int, list[Mapping[str, Any]]] = {}
    for task in session.tasks_of_jobs([job["id"] for job in jobs], fields=TASK_FIELDS):
        found.setdefault(task["job"], []).append(task)
    return found


def _rows_of(job: Mapping[str, Any], tasks: list[Mapping[str, Any]]) -> Iterator[JobRow]:
    array = array_of(job)
    if array is None:
        yield JobRow(job, tasks[0] if len(tasks) == 1 else None)
        return
    for task in tasks:
        yield JobRow(job, task, array.index_of(task["index"]))
