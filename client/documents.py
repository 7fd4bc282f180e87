"""Define the API's response documents as types; fields of newer servers are ignored."""

from typing import Any, TypedDict

TERMINAL_STATES = frozenset(
    {"SUCCEEDED", "FAILED", "KILLED", "WORKER_FAILED", "UNSCHEDULABLE", "PREEMPTED"}
)


class PendingReason(TypedDict):
    """Why a task is not placed."""

    code: str
    text: str


class JobWait(TypedDict):
    """Another job that a job waits for; `state` is open, met or failed."""

    job: int
    name: str
    until: str
    state: str


class JobGroup(TypedDict):
    """A group of a job, with the values in force."""

    name: str
    tasks: int
    min_available: int
    network: str
    prepared: dict[str, Any] | None


class Job(TypedDict):
    """A job; `task_status_count` is {group: {"phase": {STATE: n}}}. Lists leave large specs out."""

    id: int
    guid: str | None
    name: str
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
    bouncing: bool
    parent: int | None
    children: int
    retry_of: int | None
    waits_for: list[JobWait]
    created_at: str
    started_at: str | None
    finished_at: str | None
    settled_at: str | None
    spec: dict[str, Any] | None


class Task(TypedDict):
    """A task with what its current attempt came to."""

    id: int
    job: int
    group: str
    index: int
    state: str
    pending_reason: PendingReason | None
    attempt_number: int
    attempt_uid: str | None
    cell_id: str | None
    failure_reason: str
    failure_kind: str | None
    exit_code: int | None
    result: str | None
    started_at: str | None
    finished_at: str | None


class Attempt(TypedDict):
    """One try at a task."""

    uid: str
    number: int
    state: str
    phase: str
    cell_id: str
    addresses: dict[str, str]
    exit_code: int | None
    failure_reason: str
    created_at: str
    started_at: str | None
    finished_at: str | None
    released_at: str | None
    release_kind: str | None


class Artifact(TypedDict):
    """A file that an attempt left; `uri`: a path of the API, or an address elsewhere."""

    name: str
    size: int
    sha256: str
    uri: str


class Change(TypedDict):
    """A row of the history, or `count` of them as one entry, between `first_at` and `last_at`."""

    id: int
    job: int
    task: int | None
    task_name: str | None
    attempt_uid: str | None
    attempt_number: int | None
    cell_id: str | None
    from_state: str | None
    to_state: str | None
    attempt_state: str | None
    reason: str
    text: str
    message: str
    actor: str
    actor_kind: str
    first_at: str
    last_at: str
    count: int
    tasks: int
    seconds: float | None
    longest_seconds: float | None
    still: int


class Cell(TypedDict):
    """A cell with what it has and what of it is free."""

    name: str
    state: str
    state_reason: str
    pool: str
    labels: dict[str, str]
    tags: list[str]
    capacity: dict[str, float]
    free: dict[str, float]
    drivers: list[str]
    last_seen_at: str | None
    drain_deadline_at: str | None
    quarantined_until: str | None
    clock_ahead_seconds: float | None
    silent: bool


class Pool(TypedDict):
    """A pool: how work is given to its cells."""

    name: str
    sequencer: str
    selector: str
    validators: list[str]
    strict_fifo: bool
    preemption: bool
    pending_timeout_seconds: int | None
    pull_timeout_seconds: int
    create_timeout_seconds: int
    max_building_per_cell: int | None
    starvation_seconds: int | None
    mass_loss: str
    loss_held_at: str | None
    tokens: dict[str, int]


class Secret(TypedDict):
    """A secret of a project, without its value."""

    name: str
    domain: str
    project: str
    size: int
    version: int
    written_by: str | None
    created_at: str
    updated_at: str


class QuotaUsage(TypedDict):
    """The current usage of a quota owner."""

    resources: dict[str, float]
    running_tasks: int
    running_jobs: int
    pending_tasks: int


class Quota(TypedDict):
    """The limits (None: unlimited) and the usage of a quota owner."""

    kind: str
    name: str
    resources: dict[str, float]
    running_tasks: int | None
    running_jobs: int | None
    pending_tasks: int | None
    weight: float
    usage: QuotaUsage
