"""Translate states of jobs and tasks to Slurm's, in the short and the long form."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurm_commands.job_document import ARRAY_LABEL, TIME_LABEL
from slurm_commands.options import Refused
from slurm_commands.start_script import TIMEOUT_STATUS


@dataclass(frozen=True, slots=True)
class SlurmState:
    """A state of Slurm. `base` is the name in the accounting, which has no CONFIGURING."""

    code: str
    name: str
    is_over: bool = True

    @property
    def base(self) -> str:
        """Return the name that sacct shows."""
        return "PENDING" if self.code == "CF" else self.name


PENDING = SlurmState("PD", "PENDING", is_over=False)
CONFIGURING = SlurmState("CF", "CONFIGURING", is_over=False)
RUNNING = SlurmState("R", "RUNNING", is_over=False)
COMPLETED = SlurmState("CD", "COMPLETED")
FAILED = SlurmState("F", "FAILED")
OUT_OF_MEMORY = SlurmState("OOM", "OUT_OF_MEMORY")
TIMEOUT = SlurmState("TO", "TIMEOUT")
CANCELLED = SlurmState("CA", "CANCELLED")
NODE_FAIL = SlurmState("NF", "NODE_FAIL")
PREEMPTED = SlurmState("PR", "PREEMPTED")
DEADLINE = SlurmState("DL", "DEADLINE")

ALL = (
    PENDING, CONFIGURING, RUNNING, COMPLETED, FAILED, OUT_OF_MEMORY, TIMEOUT, CANCELLED, NODE_FAIL,
    PREEMPTED, DEADLINE,
)  # fmt: skip
_PLAIN = {
    "PENDING": PENDING,
    "ASSIGNED": CONFIGURING,
    "BUILDING": CONFIGURING,
    "RUNNING": RUNNING,
    "SUCCEEDED": COMPLETED,
    "FAILED": FAILED,
    "KILLED": CANCELLED,
    "WORKER_FAILED": NODE_FAIL,
    "UNSCHEDULABLE": DEADLINE,
    "PREEMPTED": PREEMPTED,
}
_OUT_OF_MEMORY, _TIME_LIMIT = "out of memory", "exceeded its time limit"


def state_of(job: Mapping[str, Any], task: Mapping[str, Any] | None = None) -> SlurmState:
    """Return the state of a task, or without one that of its job of one task."""
    state, reason = job["state"], job["failure_reason"]
    if task is not None:
        state, reason = task["state"], task["failure_reason"]
    elif state == "RUNNING":
        state = _state_of_only_task(job)
    if state == "FAILED" and _OUT_OF_MEMORY in reason:
        return OUT_OF_MEMORY
    if state == "KILLED" and _TIME_LIMIT in reason:
        return TIMEOUT
    labels = job["labels"]
    is_limited_array = ARRAY_LABEL in labels and TIME_LABEL in labels
    if is_limited_array and task is not None and task["exit_code"] == TIMEOUT_STATUS:
        return TIMEOUT
    return _PLAIN[state]


def read_states(names: list[str]) -> frozenset[SlurmState]:
    """Return the states of codes or names; `all` for each. Raise Refused."""
    found = set()
    for name in names:
        if name.upper() == "ALL":
            return frozenset(ALL)
        matching = [state for state in ALL if name.upper() in (state.code, state.name)]
        if not matching:
            raise Refused(f"{name!r} is not a state: use {', '.join(s.name for s in ALL)} or all")
        found.update(matching)
    return frozenset(found)


def _state_of_only_task(job: Mapping[str, Any]) -> str:
    """Return the state of the task of a running job, which may not have started yet."""
    for group in job["task_status_count"].values():
        for state, count in group["phase"].items():
            if count and state in ("ASSIGNED", "BUILDING", "PENDING"):
                return str(state)
    return "RUNNING"
