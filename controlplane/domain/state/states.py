"""The states of jobs, tasks, attempts and cells, sets of them, and the reasons for changes.

`controlplane.contract.states` defines the task states, since messages contain them.
"""

from enum import IntEnum, StrEnum

from controlplane.contract.states import TaskState

TERMINAL = frozenset(
    {
        TaskState.SUCCEEDED,
        TaskState.FAILED,
        TaskState.KILLED,
        TaskState.WORKER_FAILED,
        TaskState.UNSCHEDULABLE,
        TaskState.PREEMPTED,
    }
)
UNSUCCESSFUL = TERMINAL - {TaskState.SUCCEEDED}
ACTIVE = frozenset({TaskState.ASSIGNED, TaskState.BUILDING, TaskState.RUNNING})
OPEN = ACTIVE | {TaskState.PENDING}
ATTEMPT_STATES = frozenset(TaskState) - {TaskState.PENDING, TaskState.UNSCHEDULABLE}

# Order of states: a report of an earlier state is ignored (Iris: no regression).
PROGRESS = {TaskState.ASSIGNED: 0, TaskState.BUILDING: 1, TaskState.RUNNING: 2}

COLOURS = {
    TaskState.PENDING: "#9a6700",
    TaskState.ASSIGNED: "#bc4c00",
    TaskState.BUILDING: "#8250df",
    TaskState.RUNNING: "#0969da",
    TaskState.SUCCEEDED: "#1a7f37",
    TaskState.FAILED: "#cf222e",
    TaskState.KILLED: "#57606a",
    TaskState.WORKER_FAILED: "#8250df",
    TaskState.UNSCHEDULABLE: "#cf222e",
    TaskState.PREEMPTED: "#bc4c00",
}

# Jobs use a subset of the task states.
JOB_STATES = frozenset(
    {
        TaskState.PENDING,
        TaskState.RUNNING,
        TaskState.SUCCEEDED,
        TaskState.FAILED,
        TaskState.KILLED,
        TaskState.WORKER_FAILED,
        TaskState.UNSCHEDULABLE,
    }
)


class CellState(StrEnum):
    """Cell states, explained in docs/states.md; only a READY cell takes work."""

    READY = "READY"
    CORDONED = "CORDONED"
    DRAINING = "DRAINING"
    QUARANTINED = "QUARANTINED"
    LOST = "LOST"


ORDERED_STATES = (CellState.READY, CellState.CORDONED, CellState.DRAINING)
"""States that operators order, which are restored after LOST and QUARANTINED."""


class Quarantine(StrEnum):
    """Causes of a quarantine, which determine its end."""

    STOPS = "stops"  # stops are overdue: until they are confirmed
    FAILURES = "failures"  # all recent attempts on the cell failed: for some minutes
    UNFIT = "unfit"  # the cell reports itself unhealthy: until it reports itself healthy
    ORPHANS = "orphans"  # the cell registered with unknown attempts: until they are gone
    FLOODING = "flooding"  # the cell sends too many messages: until a minute after the last


TIMED_QUARANTINES = (Quarantine.FAILURES, Quarantine.FLOODING)
"""Causes with an end time; other quarantines end with their cause."""


class ReleaseKind(StrEnum):
    """Why an attempt no longer holds capacity."""

    CONFIRMED = "confirmed"  # its cell confirmed that no container exists or will be created
    CELL_LOST = "cell_lost"  # its cell is lost; the container may still run
    OPERATOR = "operator"  # an operator released it


class RetryBudget(StrEnum):
    """Retry budgets that the ends of attempts are charged to."""

    FAILURE = "failure"
    PREEMPTION = "preemption"
    SYSTEM = "system"


class RetryAction(StrEnum):
    """What a retry rule of a group does with a failed attempt."""

    RETRY = "retry"
    FAIL = "fail"


class Exclusive(StrEnum):
    """Guarantee that two attempts of a task never run at the same time, even in a partition."""

    NO = ""
    LEASE = "lease"  # released some time after the loss of the cell, when its guard has ended it
    STRICT = "strict"  # released only by the cell or an operator


class MassLoss(StrEnum):
    """Policy of a pool if more than half of its cells become silent at once."""

    HOLD = "hold"  # suppress the loss until they return or an operator confirms it
    PROCEED = "proceed"  # declare them lost after one more lease


class CallbackOn(StrEnum):
    """The ends for which a job's callback is sent."""

    NOTHING = ""
    TASK = "task"
    JOB = "job"


class NotifyAbout(StrEnum):
    """What a rule of notifications is about."""

    ALERTS = "alerts"
    JOBS = "jobs"


class CallbackState(StrEnum):
    """State of the delivery of a callback."""

    WAITING = "waiting"  # waits for its next try
    CLAIMED = "claimed"  # a worker is trying to deliver it
    DELIVERED = "delivered"  # its receiver returned a status from 200 to 299
    ABANDONED = "abandoned"  # its time is over


class Band(IntEnum):
    """Priority bands, most important first."""

    PRODUCTION = 1
    INTERACTIVE = 2
    BATCH = 3


def name_band(number: int) -> str:
    """Return the name of a band; of an invalid row, the number: operators need its other values."""
    try:
        return Band(number).name.lower()
    except ValueError:
        return str(number)


class Reason(StrEnum):
    """Reasons of state changes; `REASONS` has the texts that API, admin and docs show."""

    SUBMITTED = "submitted"
    PLACED = "placed"
    BUILDING = "building"
    RUNNER_PHASE = "runner_phase"
    TRY_FAILED = "try_failed"
    PHASES_LEFT_OUT = "phases_left_out"
    STARTED = "started"
    SUCCEEDED = "succeeded"
    EXIT_STATUS = "exit_status"
    OUT_OF_MEMORY = "out_of_memory"
    IMAGE_ERROR = "image_error"
    COMMAND_ERROR = "command_error"
    USER_ERROR = "user_error"
    SYSTEM_FAILURE = "system_failure"
    INPUT_CORRUPT = "input_corrupt"
    REFUSED = "refused"
    START_EXPIRED = "start_expired"
    CELL_LOST = "cell_lost"
    CONTAINER_VANISHED = "container_vanished"
    STOPPED_OUTSIDE = "stopped_outside"
    PREEMPTED = "preempted"
    DRAINED = "drained"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    IDLE_TIMEOUT = "idle_timeout"
    LIFETIME_OVER = "lifetime_over"
    JOB_ENDED = "job_ended"
    PARENT_ENDED = "parent_ended"
    DEPENDENCY_FAILED = "dependency_failed"
    JOB_DEPENDENCY_FAILED = "job_dependency_failed"
    REPLACED = "replaced"
    SCHEDULING_DEADLINE = "scheduling_deadline"
    REJECTED = "rejected"
    CACHE_HIT = "cache_hit"
    HEALTH_CHECK_FAILED = "health_check_failed"
    ENDED_EARLY = "ended_early"
    GANG_SIBLING_FAILED = "gang_sibling_failed"
    GANG_REQUEUED = "gang_requeued"
    LEASE_OVER = "lease_over"
    BUILD_TIMEOUT = "build_timeout"
    STOPPED_UNASKED = "stopped_unasked"
    STOP_FORCED = "stop_forced"
    RELEASED = "released"
    RELEASED_BY_OPERATOR = "released_by_operator"
    HELD = "held"
    HOLD_RELEASED = "hold_released"
    MOVED = "moved"
    TASKS_DECIDED = "tasks_decided"
    HOOK_FAILED = "hook_failed"
    ENDED_BY_HOOK = "ended_by_hook"


REASONS: dict[Reason, str] = {
    Reason.SUBMITTED: "submitted",
    Reason.PLACED: "placed on a cell",
    Reason.BUILDING: "the cell prepares its start",
    Reason.RUNNER_PHASE: "its runner reported another phase",
    Reason.TRY_FAILED: "a stage failed on its cell, which tries it again",
    Reason.PHASES_LEFT_OUT: "some phases in quick succession were left out",
    Reason.STARTED: "its program runs",
    Reason.SUCCEEDED: "its program ended with exit status 0",
    Reason.EXIT_STATUS: "its program ended with a non-zero exit status",
    Reason.OUT_OF_MEMORY: "out of memory",
    Reason.IMAGE_ERROR: "its image does not exist, may not be read, or is malformed",
    Reason.COMMAND_ERROR: "its command does not exist, or cannot be executed",
    Reason.USER_ERROR: "the submitted task cannot be run",
    Reason.INPUT_CORRUPT: "a stored input differs from what was stored",
    Reason.SYSTEM_FAILURE: "the cell's engine, registry or disk failed",
    Reason.REFUSED: "the cell refused it",
    Reason.START_EXPIRED: "not started within time limit",
    Reason.CELL_LOST: "cell disappeared before completion",
    Reason.CONTAINER_VANISHED: "its container vanished",
    Reason.STOPPED_OUTSIDE: "its container was stopped from outside",
    Reason.PREEMPTED: "preempted by more important work",
    Reason.DRAINED: "moved away because its cell is being drained",
    Reason.CANCELLED: "task was cancelled",
    Reason.TIMEOUT: "exceeded its time limit",
    Reason.IDLE_TIMEOUT: "it was idle for longer than its idle timeout",
    Reason.LIFETIME_OVER: "its lifetime has ended",
    Reason.JOB_ENDED: "its job ended",
    Reason.PARENT_ENDED: "the parent of its job ended",
    Reason.DEPENDENCY_FAILED: "a dependency of its group can no longer be met",
    Reason.JOB_DEPENDENCY_FAILED: "a dependency on another job can no longer be met",
    Reason.REPLACED: "replaced by a later job",
    Reason.SCHEDULING_DEADLINE: "could not be placed within the scheduling timeout",
    Reason.REJECTED: "can never be placed",
    Reason.CACHE_HIT: "its result was found in the cache",
    Reason.HEALTH_CHECK_FAILED: "its health check failed",
    Reason.ENDED_EARLY: "its program ended with exit status 0, but must keep running",
    Reason.GANG_SIBLING_FAILED: "another member of its gang failed",
    Reason.GANG_REQUEUED: "its gang fell below the minimum and is started again",
    Reason.LEASE_OVER: "ended by its guard before its cell's lease expired",
    Reason.BUILD_TIMEOUT: "pulling its image or creating it took too long",
    Reason.STOPPED_UNASKED: "its cell stopped it without an order",
    Reason.STOP_FORCED: "its stop was not confirmed in time, so it is killed at once",
    Reason.RELEASED: "it is confirmed gone from its cell",
    Reason.RELEASED_BY_OPERATOR: "released by an operator",
    Reason.HELD: "held: its waiting tasks are not placed",
    Reason.HOLD_RELEASED: "released from its hold",
    Reason.MOVED: "moved in the queue of its pool",
    Reason.TASKS_DECIDED: "follows from the states of its tasks",
    Reason.HOOK_FAILED: "the hook of its kind failed, or took too long",
    Reason.ENDED_BY_HOOK: "the hook of its kind ended its job",
}

FAILURE_REASONS: dict[Reason, str] = {
    Reason.SCHEDULING_DEADLINE: REASONS[Reason.START_EXPIRED],
}
"""Failure reasons that Diego's clients expect, if they differ from the text of the reason."""


_TEXTS: dict[str, str] = {reason.value: text for reason, text in REASONS.items()}


def text_of_reason(name: str) -> str:
    """Return the text of a reason; a name that is no reason is its own text."""
    return _TEXTS.get(name, name)


def failure_reason_of(reason: Reason) -> str:
    """Return the failure reason of a task that ended for `reason`."""
    return FAILURE_REASONS.get(reason, REASONS[reason])
