"""Types of documents about cells.

Generated from docs/openapi.yaml by `make docs`.
"""

from typing import TypedDict


class Drain(TypedDict):
    """The progress of a drain."""

    left: int
    total: int
    longest_until: str | None
    empty_since: str | None


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
    exec_allowed: bool
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


class UsageRow(TypedDict):
    """What attempts of settled jobs requested and used. The time of an attempt is that from its
    creation to its release, in which it holds its request.
    """

    month: str | None
    project: str | None
    user: str | None
    job: str | None
    attempts: int
    unmeasured_attempts: int
    requested_cpu_seconds: float
    used_cpu_seconds: float
    wasted_cpu_seconds: float
    requested_memory_mib_seconds: float
    used_memory_mib_seconds: float
    wasted_memory_mib_seconds: float
    memory_peak_mib: float
    requested_gpu_seconds: float


class Alert(TypedDict):
    """An alert with its meaning and what to do."""

    id: int
    kind: str
    severity: str
    subject: str
    text: str
    raised_at: str
    last_raised_at: str
    cleared_at: str | None
    meaning: str
    remedy: str
