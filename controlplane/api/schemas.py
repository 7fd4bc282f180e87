"""Define the documents of jobs, tasks and attempts for the OpenAPI description."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from controlplane.spec.fields import Model

MAX_REASON = 1_000


class CancelRequest(Model):
    """The reason of a cancellation. `force`: kill containers at once, without a grace period."""

    reason: str = Field(default="", max_length=MAX_REASON)
    force: bool = False


class HoldRequest(Model):
    """The reason of a hold, which pending reasons show."""

    reason: str = Field(min_length=1, max_length=MAX_REASON)


class HoldReleaseRequest(Model):
    """The reason for which a hold is released."""

    reason: str = Field(default="", max_length=MAX_REASON)


class MoveRequest(Model):
    """The end of its band to which a job is moved, another band, or both; and the reason."""

    to: Literal["front", "end"] | None = None
    band: Literal["production", "interactive", "batch"] | None = None
    reason: str = Field(default="", max_length=MAX_REASON)


class ReleaseRequest(Model):
    """The reason for which an operator releases an attempt."""

    reason: str = Field(min_length=1, max_length=MAX_REASON)


class CloseAlertRequest(Model):
    """The reason for which an operator closes an alert."""

    reason: str = Field(default="", max_length=MAX_REASON)


class EmptyRequest(Model):
    """An empty document."""


class ResponseModel(BaseModel):
    """Base of the responses."""

    model_config = ConfigDict(extra="forbid")


JobState = Literal[
    "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "KILLED", "WORKER_FAILED", "UNSCHEDULABLE"
]
State = Literal[
    "PENDING",
    "BUILDING",
    "RUNNING",
    "SUCCEEDED",
    "FAILED",
    "KILLED",
    "WORKER_FAILED",
    "UNSCHEDULABLE",
    "ASSIGNED",
    "PREEMPTED",
]


class Hold(ResponseModel):
    """An open hold: no waiting task is placed until its release."""

    by: str
    reason: str
    since: datetime
    role: Literal["viewer", "submitter", "manager", "operator"] = Field(
        description="That of its holder on the project; a lower one cannot release it."
    )
    project: str | None = Field(description="The held project; null: the job itself is held.")


class JobWait(ResponseModel):
    """A job that the job waits for; `until` is settled if the job replaces it."""

    job: int
    name: str = Field(description="The guid or id by which the submitter named it.")
    until: Literal["started", "succeeded", "finished", "settled"]
    state: Literal["open", "met", "failed"] = Field(
        description="failed: the condition can no longer be met."
    )


class JobGroup(ResponseModel):
    """A task group of a job, with defaults for omitted fields."""

    name: str
    tasks: int = Field(description="Number of its tasks; in a retry, less than `replicas`.")
    min_available: int
    network: Literal["none", "default", "gang"]
    prepared: dict[str, Any] | None = Field(
        description="Fields that the kind of the job set, with values; null if `spec` is null."
    )


class ScheduleInstant(ResponseModel):
    """The schedule that submitted a job, and the instant for which it did."""

    name: str
    at: datetime


class Job(ResponseModel):
    """A job. In lists, a `spec` of more than 4 KiB is null."""

    id: int
    guid: str | None
    name: str
    owner: str = Field(description="Name of the user that submitted it.")
    domain: str
    project: str
    pool: str
    band: Literal["production", "interactive", "batch"]
    kind: str
    state: JobState
    ending_as: JobState | None
    failure_reason: str
    min_available: int
    max_task_failures: int
    task_status_count: dict[str, dict[Literal["phase"], dict[State, int]]]
    groups: list[JobGroup] = Field(description="Its groups in the submitted order.")
    coscheduled: bool
    requeuing: bool = Field(description="Its gang fell below a minimum and is being requeued.")
    parent: int | None
    children: int = Field(description="Number of jobs of which it is the parent.")
    retry_of: int | None = Field(description="Id of the job that it retries.")
    schedule: ScheduleInstant | None = Field(description="Null: no schedule submitted it.")
    waits_for: list[JobWait]
    queue_rank: int = Field(
        description="Its place in its band, the lowest first; 0 unless it was moved."
    )
    holds: list[Hold] = Field(description="Its own hold, and that of its project.")
    trace: dict[Literal["id", "url"], str | None] | None = Field(description="Null: no trace.")
    labels: dict[str, str]
    annotation: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    settled_at: datetime | None
    spec: dict[str, Any] | None = Field(
        description="The submitted document; of a retry, that of the job it retries."
    )


class SubmittedJob(Job):
    """A job of a batch. `created` is false if a job with the same guid and body existed."""

    created: bool


class Batch(ResponseModel):
    """The jobs of a batch in the submitted order."""

    results: list[SubmittedJob]
    next: None


class PendingReason(BaseModel):
    """Why a task waits: a code, a text, and figures."""

    model_config = ConfigDict(extra="allow")

    code: str
    text: str


class QueueEntry(ResponseModel):
    """A group with waiting tasks, at its position in the queue of a pool."""

    position: int = Field(description="From 1, over all groups of the pool.")
    job: int
    name: str = Field(description="Name of the job.")
    group: str
    band: Literal["production", "interactive", "batch"]
    rank: int = Field(description="`queue_rank` of the job: 0 unless it was moved.")
    owner: str
    project: str
    share: float = Field(description="Dominant share of the project in the pool, from 0 to 1.")
    waiting: int = Field(description="Number of its waiting tasks.")
    since: datetime = Field(description="When its tasks could first be placed.")
    reason: PendingReason | None = Field(description="Why its tasks wait, but not single ones.")


class TaskOrigin(ResponseModel):
    """A task that ran, with the attempt that has its outputs. Its job may be deleted.

    All ids are null if the caller may not read the job, or if a shared entry outlived it.
    """

    job: int | None
    task: int | None
    attempt_uid: UUID | None
    shared: bool = Field(description="Whether the result is shared by the projects of a domain.")


class Task(ResponseModel):
    """A task with the results of its newest attempt."""

    id: int
    guid: str = Field(description="Guid of a one-off task; otherwise the id.")
    domain: str | None = Field(description="Domain of a one-off task; otherwise null.")
    job: int
    group: str
    index: int
    state: State
    state_number: int
    lifecycle: Literal["PENDING", "RUNNING", "COMPLETED", "RESOLVING"]
    stopping: bool
    pending_reason: PendingReason | None
    not_before: datetime | None
    attempt_number: int
    attempt_uid: UUID | None
    cell_id: str | None
    failed: bool
    failure_reason: str
    failure_kind: Literal["user", "system", "outside"] | None
    exit_code: int | None
    retry_rule: int | None = Field(description="That of its newest attempt.")
    resources: dict[str, float] = Field(
        description="Its request: cpu in cores, memory_mib, disk_mib, gpu, named resources. A retry"
        " rule may have increased that of its group."
    )
    result: str | None
    result_truncated: bool
    annotation: str
    failure_count: int
    preemption_count: int
    system_failure_count: int
    cache_status: Literal[
        "DISABLED",
        "LOOKUP",
        "WAITING",
        "MISS",
        "HIT",
        "POPULATED",
        "LOOKUP_FAILURE",
        "PUT_FAILURE",
        "SKIPPED",
    ]
    cache_key: str | None
    cache_origin: TaskOrigin | None = Field(
        description="The task whose result and outputs it has; null unless it is a HIT."
    )
    created_at: datetime
    created_at_ns: int = Field(description="`created_at` in nanoseconds since 1970.")
    updated_at: datetime
    updated_at_ns: int
    first_completed_at: datetime | None
    first_completed_at_ns: int | None
    started_at: datetime | None
    finished_at: datetime | None


class Claim(ResponseModel):
    """The claim of a one-off task, which is RESOLVING by this claim for 30 s."""

    claim: UUID


class PrecedingJob(ResponseModel):
    """The job that placement tries before that of the task; nulls if it is not readable."""

    job: int | None
    name: str | None


class QueuePlace(ResponseModel):
    """The position of a task among all waiting tasks of its pool that may start."""

    position: int
    of: int
    behind: PrecedingJob | None
    estimate: bool = Field(
        description="Whether it is an estimate: shares or a plugin set the order, or too many tasks"
        " wait to count each."
    )
    text: str


class ReservedCapacity(ResponseModel):
    """Capacity that is reserved for a task."""

    cell: str
    until: datetime


class Explanation(ResponseModel):
    """Why a task waits, where it runs, or how it ended. `text` is the text of `reason`."""

    task: int
    job: int
    state: State
    text: str
    reason: PendingReason = Field(description="The first reason in the order of precedence.")
    also: list[PendingReason] = Field(description="All other reasons.")
    queue: QueuePlace | None = Field(description="Null unless it waits only for capacity.")
    considered_at: datetime | None = Field(
        description="Start of the last pass that considered all pending tasks; null if the task did"
        " not wait then."
    )
    nomination: ReservedCapacity | None
    schedule: ScheduleInstant | None = Field(description="Null: no schedule submitted its job.")


class AttemptExec(ResponseModel):
    """A program that a user ran inside an attempt."""

    uid: UUID = Field(description="Of its exec session.")
    number: int
    actor: str = Field(description="Name of the user.")
    command: list[str]
    requested_at: datetime
    ended_at: datetime | None
    exit_code: int | None


class Attempt(ResponseModel):
    """One execution of a task on a cell."""

    uid: UUID
    task: int
    job: int
    number: int
    state: State
    phase: str | None
    progress: int | None
    plugin_phase: str | None
    cell_id: str
    container_id: str | None
    addresses: dict[str, str] = Field(description="host:port of each published port, by name.")
    exit_code: int | None
    retry_rule: int | None = Field(
        description="Number of the rule of `on_exit` that decided on its end, from 1; null: none."
    )
    resources: dict[str, float] = Field(
        description="Its request, with which it was placed: cpu in cores, memory_mib, disk_mib…"
    )
    failure_kind: str | None
    failure_reason: str
    usage: dict[str, Any] | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    released_at: datetime | None
    release_kind: Literal["confirmed", "cell_lost", "operator"] | None
    exec_sessions: list[AttemptExec] = Field(
        description="Programs that users ran inside it, the newest 10."
    )


class Artifact(ResponseModel):
    """A stored file of an attempt; `uri` is a path of this API, or a URL elsewhere."""

    name: str
    size: int = Field(description="In bytes.")
    sha256: str
    uri: str
    link: str | None = Field(
        description="Path that returns the content or redirects to it; null if it is elsewhere."
    )


class Artifacts(ResponseModel):
    """All artifacts of a task or an attempt."""

    results: list[Artifact]
    next: None


class TaskArtifacts(ResponseModel):
    """A task of a job with its artifacts, which belong to `attempt`."""

    task: int
    group: str
    index: int
    attempt: UUID | None
    artifacts: list[Artifact]


class Change(ResponseModel):
    """A change in the history, or several merged ones: see `count`, `first_at` and `last_at`.

    A field that differs between merged changes is null; `message` and `actor` list the newest few.
    """

    id: int = Field(description="Id of the newest change.")
    job: int
    task: int | None = Field(description="Null also for a change of the job (`tasks` is 0).")
    task_name: str | None
    attempt_uid: UUID | None
    attempt_number: int | None
    cell_id: str | None = Field(description="Name of the cell of the attempt.")
    from_state: State | None
    to_state: State | None
    attempt_state: State | None
    reason: str
    text: str
    message: str
    actor: str = Field(description="A user, a cell, or a component of the control plane.")
    actor_kind: Literal["user", "cell", "control_plane"]
    at: datetime = Field(description="The same as `last_at`.")
    first_at: datetime
    last_at: datetime
    count: int = Field(description="Number of merged changes.")
    tasks: int = Field(description="Number of tasks that changed.")
    seconds: float | None = Field(
        description="Seconds spent in `to_state`; of merged changes, the total. Null while the task"
        " is in the state, and if no state was entered."
    )
    longest_seconds: float | None = Field(description="The longest stay in seconds.")
    still: int = Field(description="Number of tasks that are still in `to_state`.")


class UploadSize(ResponseModel):
    """The number of bytes that are stored."""

    size: int


class StoredOutputs(ResponseModel):
    """The attempts of which all pieces of output are stored, and those without time to begin."""

    stored: list[UUID]
    untried: list[UUID]


class UploadState(ResponseModel):
    """How the upload of a file continues; without `url` it is sent in pieces."""

    size: int
    url: str | None
    headers: dict[str, str]


class FieldError(ResponseModel):
    """A fault of one field; `field` is a path such as `groups[0].resources.cpu`."""

    field: str
    detail: str


class Problem(BaseModel):
    """An error (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    errors: list[FieldError] | None = None
    request_id: str | None = Field(
        default=None, description="As in the header X-Request-Id of the response."
    )
    code: Literal["stored_bytes", "store_full"] | None = Field(
        default=None,
        description="Of a response 507: stored_bytes if the project has reached the limit of its"
        " quota; store_full if the store has too little free space, for a time.",
    )
