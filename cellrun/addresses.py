"""Find jobs, tasks and attempts by the one kind of address that all commands take.

JOB is an id, a name (the newest job of that name) or a guid. JOB/GROUP.INDEX is a task of it,
JOB/INDEX one of a job with one group, JOB/GROUP all tasks of a group, JOB/GROUP.INDEX#2 the second
attempt of a task. The uid of an attempt names it, too.
"""

import re
from dataclasses import dataclass

from cellrun.api.session import Session
from cellrun.documents import Attempt, Job, Task
from cellrun.errors import ApiError, BadInput

UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_PLACE = re.compile(r"(?:(?P<group>.+)\.)?(?P<index>[0-9]{1,9})")
_LONGEST_ID = 18
_SHOWN_NAMES = 3


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of an address. `index` and `attempt` are None if it has none."""

    job: str
    group: str | None = None
    index: int | None = None
    attempt: int | None = None

    @property
    def is_job(self) -> bool:
        """Return whether it names a whole job."""
        return self.group is None and self.index is None and self.attempt is None


@dataclass(frozen=True, slots=True)
class Subject:
    """What an address names: a job, a group of it, a task of it, or an attempt of a task.

    Only a task by its id and an attempt by its uid have no `job_id`.
    """

    job_id: int | None = None
    group: str | None = None
    task: Task | None = None
    attempt: Attempt | None = None


def read_address(text: str) -> Address:
    """Return the parts of an address. Raise BadInput."""
    head, sign, number = text.partition("#")
    if sign and not re.fullmatch("[1-9][0-9]{0,8}", number):
        raise BadInput(f"{text}: expected the number of an attempt after #, as in 7/main.0#2")
    attempt = int(number) if sign else None
    job, slash, place = head.rpartition("/")
    if not slash:
        job, place = head, ""
    if not job or (slash and not place):
        raise BadInput(f"{text!r}: expected JOB, JOB/GROUP.INDEX or JOB/GROUP.INDEX#ATTEMPT")
    found = _PLACE.fullmatch(place)
    if found is None:
        return Address(job, group=place or None, attempt=attempt)
    return Address(job, found["group"], int(found["index"]), attempt)


def find_job_id(session: Session, text: str) -> int:
    """Return the id of the job that `text` names. Raise BadInput, ApiError."""
    return int(text) if _is_id(text) else find_job(session, text)["id"]


def find_job(session: Session, text: str) -> Job:
    """Return the job that `text` names: an id, a name or a guid. Raise BadInput, ApiError."""
    if _is_id(text):
        return session.job(int(text))
    found = _search_job(session, text)
    if found is not None:
        return found
    head, _, place = text.partition("#")[0].rpartition("/")
    if head and place and (_is_id(head) or _search_job(session, head) is not None):
        raise BadInput(f"{text} names tasks of a job: the command takes the whole job, {head}")
    raise BadInput(f"there is no job with the name or guid {text!r}: `cellrun jobs` lists the jobs")


def find_subject(session: Session, text: str, *, is_task: bool = False) -> Subject:
    """Return what `text` names; with `is_task`, the task with this id. Raise BadInput, ApiError."""
    if is_task:
        return Subject(task=session.task(text))
    if UID.fullmatch(text):
        try:
            return Subject(attempt=session.attempt(text))
        except ApiError as fault:
            if fault.status != 404:
                raise
    address = read_address(text)
    if address.is_job:
        return Subject(find_job_id(session, text))
    try:
        job_id = find_job_id(session, address.job)
    except BadInput:
        whole = _search_job(session, text)  # a guid may contain a slash
        if whole is None:
            raise
        return Subject(whole["id"])
    if address.index is None and address.attempt is None:
        _check_group(session.job(job_id), address.group or "")
        return Subject(job_id, address.group)
    task = _find_task(session, job_id, address)
    attempt = None if address.attempt is None else _find_attempt(session, task, address.attempt)
    return Subject(job_id, task=task, attempt=attempt)


def find_tasks(session: Session, subject: Subject) -> list[Task]:
    """Return the tasks of a subject: one, or those of its job or group."""
    if subject.task is not None:
        return [subject.task]
    if subject.job_id is not None:
        return list(session.tasks(subject.job_id, group=subject.group))
    assert subject.attempt is not None
    return [session.task(subject.attempt["task"])]


def find_one_task(session: Session, text: str, *, is_task: bool = False) -> Task:
    """Return the task that `text` names, or the only task of a job. Raise BadInput, ApiError."""
    subject = find_subject(session, text, is_task=is_task)
    if subject.task is not None:
        return subject.task
    if subject.attempt is not None:
        return session.task(subject.attempt["task"])
    assert subject.job_id is not None
    return _find_task(session, subject.job_id, Address(text, group=subject.group))


def task_name(task: Task) -> str:
    """Return the name of a task in its job: `main.0`."""
    return f"{task['group']}.{task['index']}"


def task_address(task: Task) -> str:
    """Return the address of a task: `7/main.0`."""
    return f"{task['job']}/{task_name(task)}"


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _LONGEST_ID


def _search_job(session: Session, text: str) -> Job | None:
    """Return the newest job with the name `text`, or else with the guid `text`."""
    for key in ("name", "guid"):
        if key == "guid" or _NAME.fullmatch(text):
            for job in session.jobs(limit=1, **{key: text}):
                return job
    return None


def _check_group(job: Job, group: str) -> None:
    names = list(job["task_status_count"])
    if group not in names:
        more = len(names) - _SHOWN_NAMES
        listed = ", ".join(names[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
        raise BadInput(f"job {job['id']} has no group {group!r}; it has {listed}")


def _find_task(session: Session, job_id: int, address: Address) -> Task:
    """Return the only task of a job at the group and index of an address. Raise BadInput."""
    index = address.index
    found = list(session.tasks(job_id, group=address.group, index=index, limit=_SHOWN_NAMES))
    if not found:
        name = ".".join(str(part) for part in (address.group, index) if part is not None)
        raise BadInput(f"job {job_id} has no task {name}: `cellrun job {job_id}` lists its tasks")
    if len(found) > 1:
        names = ", ".join(task_address(task) for task in found)
        raise BadInput(f"job {job_id} has several such tasks: name one of {names}, …")
    return found[0]


def _find_attempt(session: Session, task: Task, number: int) -> Attempt:
    attempts = session.attempts(task["id"])
    found = next((attempt for attempt in attempts if attempt["number"] == number), None)
    if found is None:
        count = "1 attempt" if len(attempts) == 1 else f"{len(attempts)} attempts"
        raise BadInput(f"task {task_address(task)} has {count}, and none with the number {number}")
    return found
