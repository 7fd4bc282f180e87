"""Jobs for the tests, and waiting for what becomes of them, through the Python client."""

from collections import Counter
from typing import Any

from cellrun import Session
from cellrun.documents import Attempt, Job, Task
from cellrun.errors import ApiError, Unreachable
from cellrun.settings import ClientSettings
from cellrun.states import TERMINAL_STATES
from tests.e2e.stack import RunningStack, wait_until

IMAGE = "cellrun/demo:latest"
SMALL = {"cpu": 0.1, "memory": "16Mi"}
PRINT_BOTH_ENDS = "echo begun; sleep {seconds:g}; echo done"


def session_of(stack: RunningStack, *, operator: bool = False) -> Session:
    """A client of the stack as its submitter, or as its operator."""
    token = stack.environment["CELLRUN_OPERATOR_TOKEN" if operator else "CELLRUN_TOKEN"]
    return Session(ClientSettings(stack.environment["CELLRUN_URL"], token))


def shell_job(script: str, **fields: Any) -> dict[str, Any]:
    """A small job whose tasks run `script`."""
    return {
        "name": "e2e",
        "image": IMAGE,
        "command": ["sh", "-c", script],
        "resources": SMALL,
        **fields,
    }


def sleepers(replicas: int, seconds: float, **fields: Any) -> dict[str, Any]:
    """Return a job of tasks that print when they begin and when they are done."""
    return shell_job(PRINT_BOTH_ENDS.format(seconds=seconds), replicas=replicas, **fields)


def count_states(job: Job) -> Counter[str]:
    """How many of the job's tasks are in each state."""
    counts: Counter[str] = Counter()
    for group in job["task_status_count"].values():
        counts.update(group["phase"])
    return counts


def find_job(session: Session, job_id: int) -> Job | None:
    """Return the job; None while the API does not answer."""
    try:
        return session.job(job_id)
    except (Unreachable, ApiError):
        return None


def is_in_mid_run(session: Session, job_id: int, *, ended: int) -> bool:
    """Whether so many of its tasks have ended while others run."""
    job = find_job(session, job_id)
    if job is None:
        return False
    counts = count_states(job)
    assert job["state"] not in TERMINAL_STATES, f"the job was over too soon: {counts}"
    return counts["SUCCEEDED"] >= ended and counts["RUNNING"] > 0


def wait_for_mid_run(session: Session, job_id: int, *, ended: int = 6) -> None:
    """Return when some tasks have ended and others run."""
    wait_until(
        lambda: is_in_mid_run(session, job_id, ended=ended),
        seconds=60,
        what=f"job {job_id} is in mid-run",
    )


def wait_for_end(session: Session, job_id: int, *, seconds: float = 120) -> Job:
    """The job, once it is over."""
    ends: list[Job] = []

    def is_over() -> bool:
        job = find_job(session, job_id)
        if job is not None and job["state"] in TERMINAL_STATES:
            ends.append(job)
        return bool(ends)

    wait_until(is_over, seconds=seconds, what=f"job {job_id} is over")
    return ends[0]


def run_to_end(session: Session, spec: dict[str, Any], *, seconds: float = 60) -> tuple[Job, Task]:
    """Submit a job and return it and its first task once it is over."""
    job = wait_for_end(session, session.submit(spec)["id"], seconds=seconds)
    return job, next(session.tasks(job["id"]))


def attempts_of(session: Session, job_id: int) -> dict[int, list[Attempt]]:
    """Every attempt of a job by task, oldest first."""
    return {task["id"]: session.attempts(task["id"]) for task in session.tasks(job_id)}


def whole_log(session: Session, uid: str, stream: str = "stdout") -> str:
    """All that an attempt wrote to a stream, as the API serves it."""
    content, cursor = b"", "0"
    while True:
        piece = session.log(uid, stream, cursor)
        if not piece.content:
            return content.decode()
        content += piece.content
        cursor = piece.cursor
