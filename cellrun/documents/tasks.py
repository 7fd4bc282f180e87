"""Types of documents about tasks.

Generated from docs/openapi.yaml by `make docs`.
"""

from typing import Any, TypedDict

from cellrun.documents.jobs import PendingReason


class TaskOrigin(TypedDict):
    """A task that ran, with the attempt that has its outputs. Its job may be deleted. All ids are
    null if the caller may not read the job, or if a shared entry outlived it.
    """

    job: int | None
    task: int | None
    attempt_uid: str | None
    shared: bool


class Task(TypedDict):
    """A task with the results of its newest attempt."""

    id: int
    guid: str
    domain: str | None
    job: int
    group: str
    index: int
    state: str
    state_number: int
    lifecycle: str
    stopping: bool
    pending_reason: PendingReason | None
    not_before: str | None
    attempt_number: int
    attempt_uid: str | None
    cell_id: str | None
    failed: bool
    failure_reason: str
    failure_kind: str | None
    exit_code: int | None
    retry_rule: int | None
    resources: dict[str, float]
    result: str | None
    result_truncated: bool
    annotation: str
    failure_count: int
    preemption_count: int
    system_failure_count: int
    cache_status: str
    cache_key: str | None
    cache_origin: TaskOrigin | None
    created_at: str
    created_at_ns: int
    updated_at: str
    updated_at_ns: int
    first_completed_at: str | None
    first_completed_at_ns: int | None
    started_at: str | None
    finished_at: str | None


class AttemptExec(TypedDict):
    """A program that a user ran inside an attempt."""

    uid: str
    number: int
    actor: str
    command: list[str]
    requested_at: str
    ended_at: str | None
    exit_code: int | None


class Attempt(TypedDict):
    """One execution of a task on a cell."""

    uid: str
    task: int
    job: int
    number: int
    state: str
    phase: str | None
    progress: int | None
    plugin_phase: str | None
    cell_id: str
    container_id: str | None
    addresses: dict[str, str]
    exit_code: int | None
    retry_rule: int | None
    resources: dict[str, float]
    failure_kind: str | None
    failure_reason: str
    usage: dict[str, Any] | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    released_at: str | None
    release_kind: str | None
    exec_sessions: list[AttemptExec]


class ExecDocument(TypedDict):
    """A session: a program that a user runs inside an attempt."""

    uid: str
    number: int
    attempt: str
    task: int
    job: int
    command: list[str]
    tty: bool
    stdin: bool
    actor: str
    token: str
    state: str
    requested_at: str
    opened_at: str | None
    ended_at: str | None
    exit_code: int | None
    reason: str


class Artifact(TypedDict):
    """A stored file of an attempt; `uri` is a path of this API, or a URL elsewhere."""

    name: str
    size: int
    sha256: str
    uri: str
    link: str | None


class TaskArtifacts(TypedDict):
    """A task of a job with its artifacts, which belong to `attempt`."""

    task: int
    group: str
    index: int
    attempt: str | None
    artifacts: list[Artifact]


class CacheOrigin(TypedDict):
    """The task that populated an entry of the cache. Its job may be deleted. Its ids and submitter
    are null if the caller may not read the project that populated the entry.
    """

    job: int | None
    task: int | None
    attempt_uid: str | None
    submitter: str | None
    populated_at: str


class CacheEntry(TypedDict):
    """A result in the cache. In lists, `result` and `outputs` are null."""

    id: int
    key: str
    scope: str
    domain: str
    project: str | None
    origin: CacheOrigin
    hits: int
    used_at: str
    size_bytes: int
    outputs_count: int
    result: str | None
    outputs: list[Artifact] | None


class Change(TypedDict):
    """A change in the history, or several merged ones: see `count`, `first_at` and `last_at`. A
    field that differs between merged changes is null; `message` and `actor` list the newest
    few.
    """

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
    at: str
    first_at: str
    last_at: str
    count: int
    tasks: int
    seconds: float | None
    longest_seconds: float | None
    still: int
