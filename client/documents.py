"""Types of the API's response documents; fields of newer servers are ignored.

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
    failure_kind: str | None
    failure_reason: str
    usage: dict[str, Any] | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    released_at: str | None
    release_kind: str | None


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


class Drain(TypedDict):
    """The progress of a drain."""

    left: int
    total: int
    longest_until: str | None


class Cell(TypedDict):
    """A cell. Resources: cpu in cores, memory_mib, disk_mib, gpu and named resources."""

    name: str
    state: str
    state_reason: str
    pool: str
    labels: dict[str, str]
    tags: list[str]
    node_labels: dict[str, str]
    incarnation: str | None
    capacity: dict[str, float]
    max_capacity: dict[str, float]
    fixed_tags: list[str]
    free: dict[str, float]
    drivers: list[str]
    task_types: list[str]
    last_seen_at: str | None
    revoked_at: str | None
    drain_deadline_at: str | None
    drain: Drain | None
    quarantined_until: str | None
    clock_ahead_seconds: float | None
    silent: bool
    mismatch: str


class AllowedMount(TypedDict):
    """A path on the hosts of the cells that tasks may mount, with everything below it."""

    path: str
    read_only: bool


class JobLimits(TypedDict):
    """Limits of a pool for the values of its jobs. Omitted ones have their defaults."""

    max_pids: int
    max_ttl_seconds: int
    max_retries: int
    max_grace_seconds: float
    min_check_interval_seconds: float
    always_pull: bool
    default_disk_mib: int
    max_ports: int
    max_shm_mib: int
    max_outputs: int
    max_artifact_mib: int


class Pool(TypedDict):
    """The policy of a pool, and since when a mass loss of its cells is suppressed."""

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
    cells_may_join: bool
    allowed_mounts: list[AllowedMount]
    privileged_allowed: bool
    allowed_capabilities: list[str]
    input_networks: list[str]
    job_limits: JobLimits


class QuotaUsage(TypedDict):
    """The usage of a quota in all pools: held by unreleased attempts, waiting tasks, and files."""

    resources: dict[str, float]
    running_tasks: int
    running_jobs: int
    pending_tasks: int
    stored_bytes: int | None


class Quota(TypedDict):
    """Limits and usage of a user, project or domain over all pools; null, or a resource that is
    not listed: no limit. Resources: cpu in cores, memory_mib, disk_mib, gpu, named resources,
    tokens.
    """

    kind: str
    name: str
    resources: dict[str, float]
    running_tasks: int | None
    running_jobs: int | None
    pending_tasks: int | None
    stored_bytes: int | None
    weight: float
    highest_band: str
    is_default: bool
    usage: QuotaUsage | None


class StoredSecret(TypedDict):
    """A secret without its value."""

    name: str
    domain: str
    project: str
    size: int
    version: int
    registry_server: str
    written_by: str | None
    created_at: str
    updated_at: str


class Token(TypedDict):
    """An API token without its value."""

    id: int
    name: str
    user: str
    role: str
    projects: list[str] | None
    hidden_projects: int
    prefix: str
    created_at: str
    expires_at: str | None
    last_used_at: str | None


class GrantedToken(TypedDict):
    """A new API token. `token`: its value, which cannot be read again."""

    id: int
    name: str
    user: str
    role: str
    projects: list[str] | None
    hidden_projects: int
    prefix: str
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    token: str


class User(TypedDict):
    """A user. `role`: the most that the user's tokens permit."""

    name: str
    active: bool
    role: str
    date_joined: str
    last_login: str | None


class HeldRole(TypedDict):
    """A role of the caller on a project or on all projects of a domain."""

    domain: str
    project: str | None
    role: str


class Whoami(TypedDict):
    """The caller. `role`: the most that the presented token permits."""

    user: str
    role: str
    installation: str | None
    roles: list[HeldRole]
    token: Token


class AuditLine(TypedDict):
    """A line of the audit log."""

    id: int
    at: str
    actor: str
    via: str
    token: str
    address: str
    request_id: str
    action: str
    subject: str
    text: str
    project: str | None
    domain: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class ProjectHold(TypedDict):
    """An open hold: no waiting task is placed until its release."""

    by: str
    reason: str
    since: str
    role: str
    project: str


class Project(TypedDict):
    """A project. `role`: that of the caller, limited by the presented token."""

    name: str
    domain: str
    project: str
    role: str
    archived: bool
    archived_at: str | None
    stored_bytes: int
    stored_bytes_limit: int | None
    hold: ProjectHold | None


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


class Member(TypedDict):
    """A user or group with a role."""

    kind: str
    name: str
    role: str
    created_at: str


class ServiceAccount(TypedDict):
    """A user for a machine, without a password, of one project."""

    name: str
    role: str | None
    created_at: str
