"""Read which changes a stream of events has, and from where; positions as clients keep them."""

import base64
import binascii
import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from controlplane.api.openapi import parameter
from controlplane.api.problems import BadQuery
from controlplane.api.requests import Parameters
from controlplane.api.walls import check_named_project
from controlplane.domain.errors import NotFound
from controlplane.domain.roles import Access
from controlplane.queries.events import check_position, find_start, instant_of, load_last_id
from controlplane.queries.tenancy.access import find_projects_of_jobs

MAX_JOBS = 1_000
KINDS = ("job", "task")
RESUME_HEADER = "Last-Event-ID"

EVENT_PARAMETERS = [
    parameter("project", "A project that the caller may read.", example="default/default"),
    parameter("job", "Ids of jobs, separated by commas; at most 1,000.", example="1,2,3"),
    parameter("kind", "Only changes of jobs (job) or of tasks (task).", example="task"),
    parameter(
        "after",
        "The `id` of an event: continue behind it. The header `Last-Event-ID` does the same and has"
        " precedence.",
    ),
    parameter(
        "since",
        "Without a position: begin with the changes at or shortly before this time, at most 24"
        " hours ago. Default: begin now.",
    ),
    parameter("follow", "false: end with the last present change. Default: true.", bool),
]
_PLAIN = re.compile(r"([0-9]{1,18})\.([0-9]{1,11})", re.ASCII)


@dataclass(frozen=True, slots=True)
class EventQuery:
    """The changes of a stream: behind the row `start` (None: from now on) and up to `end`.

    `end`: None follows. `project_id`, `jobs`, `kind`: filters; None does not filter.
    """

    start: int | None = None
    end: int | None = None
    project_id: int | None = None
    jobs: frozenset[int] | None = None
    kind: str | None = None

    def visible_projects(self, access: Access) -> Collection[int] | None:
        """Return the projects whose changes the stream has for a caller; None: all."""
        readable = access.readable
        if self.project_id is None:
            return readable
        return {self.project_id} if readable is None or self.project_id in readable else ()


def read_event_query(
    parameters: Parameters, access: Access, resumed_at: str | None, *, now: datetime
) -> EventQuery:
    """Return what a request asks for. `resumed_at`: the header, if any.

    Raise BadQuery, InvalidSpec, NotFound or PositionGone.
    """
    project, jobs = parameters.text("project"), parameters.ids("job", most=MAX_JOBS)
    project_id = None if project is None else check_named_project(access, project).project_id
    if jobs is not None:
        _check_jobs(access, jobs)
    kind, since = parameters.choice("kind", KINDS), parameters.instant("since")
    follows, after = parameters.flag("follow", default=True), parameters.text("after")
    end = None if follows else load_last_id()
    start = None
    if resumed_at:
        start = _read_start(RESUME_HEADER, resumed_at, now)
    elif after is not None:
        start = _read_start("after", after, now)
    elif since is not None:
        start = find_start(since, now=now)
    return EventQuery(start, end, project_id, None if jobs is None else frozenset(jobs), kind)


def write_position(row_id: int, now: datetime) -> str:
    """Return the position behind a row, as of now."""
    plain = f"{row_id}.{int(now.timestamp())}"
    return base64.urlsafe_b64encode(plain.encode()).decode().rstrip("=")


def _read_start(name: str, text: str, now: datetime) -> int:
    try:
        padded = text + "=" * (-len(text) % 4)
        plain = base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        plain = ""
    found = _PLAIN.fullmatch(plain)
    if found is None:
        raise BadQuery(name, "is not a position: use the id of an event of this stream")
    row_id = int(found[1])
    check_position(row_id, instant_of(int(found[2])), now=now)
    return row_id


def _check_jobs(access: Access, jobs: Collection[int]) -> None:
    """Raise NotFound if the caller may read none of the jobs."""
    projects, readable = find_projects_of_jobs(jobs), access.readable
    if not projects or (readable is not None and not set(projects.values()) & set(readable)):
        named = f"job {min(jobs)}" if len(set(jobs)) == 1 else "job with one of these ids"
        raise NotFound(f"there is no {named}")
