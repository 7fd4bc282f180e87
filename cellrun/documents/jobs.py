"""Types of documents about jobs.

Generated from docs/openapi.yaml by `make docs`.
"""

from typing import Any, TypedDict


class JobGroup(TypedDict):
    """A task group of a job, with defaults for omitted fields."""

    name: str
    tasks: int
    min_available: int
    network: str
    prepared: dict[str, Any] | None


class ScheduleInstant(TypedDict):
    """The schedule that submitted a job, and the instant for which it did."""

    name: str
    at: str


class JobWait(TypedDict):
    """A job that the job waits for; `until` is settled if the job replaces it."""

    job: int
    name: str
    until: str
    state: str


class Hold(TypedDict):
    """An open hold: no waiting task is placed until its release."""

    by: str
    reason: str
    since: str
    role: str
    project: str | None


class Job(TypedDict):
    """A job. In lists, a `spec` of more than 4 KiB is null."""

    id: int
    guid: str | None
    name: str
    owner: str
    domain: str
    project: str
    pool: str
    band: str
    kind: str
    state: str
    ending_as: str | None
    failure_reason: str
    min_available: int
    max_task_failures: int
    task_status_count: dict[str, dict[str, dict[str, int]]]
    groups: list[JobGroup]
    coscheduled: bool
    requeuing: bool
    parent: int | None
    children: int
    retry_of: int | None
    schedule: ScheduleInstant | None
    waits_for: list[JobWait]
    queue_rank: int
    holds: list[Hold]
    trace: dict[str, str | None] | None
    labels: dict[str, str]
    annotation: str
    created_at: str
    started_at: str | None
    finished_at: str | None
    settled_at: str | None
    spec: dict[str, Any] | None


class PendingReason(TypedDict):
    """Why a task waits: a code, a text, and figures."""

    code: str
    text: str


class QueueEntry(TypedDict):
    """A group with waiting tasks, at its position in the queue of a pool."""

    position: int
    job: int
    name: str
    group: str
    band: str
    rank: int
    owner: str
    project: str
    share: float
    waiting: int
    since: str
    reason: PendingReason | None


class BulkSample(TypedDict):
    """A job that a bulk operation would process."""

    id: int
    name: str
    state: str
    project: str


class BulkCount(TypedDict):
    """The jobs that a bulk operation would process now, with the newest ones."""

    count: int
    is_whole: bool
    sample: list[BulkSample]


class BulkSelection(TypedDict):
    """The filter of a bulk operation."""

    project: str | None
    pool: str | None
    name: str | None
    labels: dict[str, str]
    states: list[str]


class BulkRefusal(TypedDict):
    """A job that did not permit the action."""

    job: int
    text: str


class BulkOperation(TypedDict):
    """A bulk operation with its progress. `refusals`: the first 20."""

    id: int
    action: str
    filter: BulkSelection
    reason: str
    by: str
    state: str
    created_at: str
    ended_at: str | None
    ended_because: str
    expected: int
    done: int
    refused: int
    refusals: list[BulkRefusal]
