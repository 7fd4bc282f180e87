"""Define the documents of jobs, tasks and attempts for the OpenAPI description."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from controlplane.spec.fields import Model

MAX_REASON = 1_000


class CancelRequest(Model):
    """Why something is cancelled; with `force` its containers are killed at once."""

    reason: str = Field(default="", max_length=MAX_REASON)
    force: bool = False


class ReleaseRequest(Model):
    """Why an operator vouches that nothing is left of an attempt."""

    reason: str = Field(min_length=1, max_length=MAX_REASON)


class EmptyRequest(Model):
    """An empty document."""


class ResponseModel(BaseModel):
    """Base of what is answered."""

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


class JobWait(ResponseModel):
    """Another job that this one waits for: settled, if it takes the place of that one."""

    job: int
    name: str = Field(description="As it was named: its guid, or its id.")
    until: Literal["started", "succeeded", "finished", "settled"]
    state: Literal["open", "met", "failed"] = Field(description="Failed: it can no longer be.")


class JobGroup(ResponseModel):
    """A group of a job, with what it has by default where nothing was written."""

    name: str
    tasks: int = Field(description="In a retry less than its replicas.")
    min_available: int
    network: Literal["none", "default", "gang"]
    prepared: dict[str, Any] | None = Field(
        description="Fields that the job's kind set, as scheduled; null like a job's `spec`."
    )


class Job(ResponseModel):
    """A job. In lists, `spec` is null where it is larger than 4 KiB."""

    id: int
    guid: str | None
    name: str
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
    groups: list[JobGroup] = Field(description="In their order, with the values in force.")
    coscheduled: bool
    requeuing: bool = Field(description="Its gang fell below a minimum and goes back to wait.")
    parent: int | None
    children: int = Field(description="How many jobs have it as their parent.")
    retry_of: int | None = Field(description="The job whose tasks it tries again.")
    waits_for: list[JobWait]
    labels: dict[str, str]
    annotation: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    settled_at: datetime | None
    spec: dict[str, Any] | None = Field(description="As submitted; a retry's is that of its job.")


class SubmittedJob(Job):
    """A job of a batch. Not `created`: it was there already, with the same guid and body."""

    created: bool


class Batch(ResponseModel):
    """The jobs of a batch, in order."""

    results: list[SubmittedJob]
    next: None


class PendingReason(BaseModel):
    """Why a task waits: a code, a sentence, and the figures behind it."""

    model_config = ConfigDict(extra="allow")

    code: str
    text: str


class Task(ResponseModel):
    """A task with what its present attempt came to."""

    id: int
    guid: str = Field(description="Its client's, of a one-off task; else its id.")
    domain: str | None = Field(description="The label of a one-off task's client; else null.")
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
    result: str | None
    result_truncated: bool
    annotation: str
    failure_count: int
    preemption_count: int
    system_failure_count: int
    cache_status: str
    cache_key: str | None
    created_at: datetime
    created_at_ns: int = Field(description="Nanoseconds since 1970.")
    updated_at: datetime
    updated_at_ns: int
    first_completed_at: datetime | None
    first_completed_at_ns: int | None
    started_at: datetime | None
    finished_at: datetime | None


class Claim(ResponseModel):
    """A one-off task that is RESOLVING for 30 s, exclusively by the holder of this claim."""

    claim: UUID


class PrecedingJob(ResponseModel):
    """The job that is tried just before that of the task."""

    job: int
    name: str


class QueuePlace(ResponseModel):
    """Where a task stands among all that wait in its pool and may start."""

    position: int
    of: int
    behind: PrecedingJob | None
    estimate: bool = Field(description="Shares or a plugin set the order, or too many tasks wait.")
    text: str


class ReservedCapacity(ResponseModel):
    """Room that is kept for a task."""

    cell: str
    until: datetime


class Explanation(ResponseModel):
    """Where a task stands, and why. `text` is that of `reason`, as everywhere."""

    task: int
    job: int
    state: State
    text: str
    reason: PendingReason = Field(description="What is nearest to the task.")
    also: list[PendingReason] = Field(description="All other obstacles.")
    queue: QueuePlace | None = Field(description="Null: it does not wait for room alone.")
    considered_at: datetime | None = Field(
        description="The last pass that considered all pending tasks, if the task waited by then."
    )
    nomination: ReservedCapacity | None


class GroupForecast(ResponseModel):
    """What would become of one group of a job that was not submitted."""

    name: str
    cells: dict[str, int] = Field(description="How many of its tasks would go to which cell now.")
    waiting: int = Field(description="How many would wait.")
    reason: PendingReason | None = Field(description="Why they would.")
    also: list[PendingReason] = Field(description="What else would stand against them.")
    is_refused: bool = Field(description="They would end UNSCHEDULABLE, and the job with them.")
    kept: dict[str, int] = Field(description="Where room would be made for how many.")


class Victim(ResponseModel):
    """A task that would be evicted."""

    task: int
    name: str
    job: int
    cell: str | None


class DryRun(ResponseModel):
    """What submitting a job now would come to. Nothing is kept: the next moment may differ."""

    pool: str
    existing_job: int | None = Field(description="That job would be answered, no other made.")
    groups: list[GroupForecast]
    evicts: list[Victim]
    is_complete: bool = Field(
        description="Otherwise more tasks wait before it than were considered."
    )


class Attempt(ResponseModel):
    """One try at a task."""

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
    addresses: dict[str, str] = Field(description="host:port of its published ports, by name.")
    exit_code: int | None
    failure_kind: str | None
    failure_reason: str
    usage: dict[str, Any] | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    released_at: datetime | None
    release_kind: Literal["confirmed", "cell_lost", "operator"] | None


class Artifact(ResponseModel):
    """A file that an attempt left; `uri` is a path of this API, or an address elsewhere."""

    name: str
    size: int
    sha256: str
    uri: str


class Artifacts(ResponseModel):
    """All files that an attempt left."""

    results: list[Artifact]
    next: None


class Change(ResponseModel):
    """A row of the history, or several that are shown as one: see `count`, `first_at`, `last_at`.

    Fields that differ between them are null; of `message` and `actor` the newest few are listed.
    """

    id: int = Field(description="Of the newest row.")
    job: int
    task: int | None = Field(description="Null also where the job itself moved (`tasks` is 0).")
    task_name: str | None
    attempt_uid: UUID | None
    attempt_number: int | None
    cell_id: str | None = Field(description="Where the attempt is or was.")
    from_state: State | None
    to_state: State | None
    attempt_state: State | None
    reason: str
    text: str
    message: str
    actor: str = Field(description="A user, a cell, or what of the control plane did it.")
    actor_kind: Literal["user", "cell", "control_plane"]
    at: datetime = Field(description="As `last_at`.")
    first_at: datetime
    last_at: datetime
    count: int = Field(description="Number of rows that this entry summarizes.")
    tasks: int = Field(description="Of how many tasks.")
    seconds: float | None = Field(
        description="How long it stayed in `to_state`; of several rows, all stays together. Null"
        " while it is still there, and where no state was entered."
    )
    longest_seconds: float | None = Field(description="The longest stay.")
    still: int = Field(description="How many are still in the state that they entered.")


class UploadSize(ResponseModel):
    """How many bytes of the stream are here now."""

    size: int


class FieldError(ResponseModel):
    """One fault: `field` is a path like `groups[0].resources.cpu`."""

    field: str
    detail: str


class Problem(BaseModel):
    """What is wrong (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    errors: list[FieldError] | None = None
