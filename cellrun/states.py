"""Name the active and the terminal states of jobs and tasks."""

TERMINAL_STATES = frozenset(
    {"SUCCEEDED", "FAILED", "KILLED", "WORKER_FAILED", "UNSCHEDULABLE", "PREEMPTED"}
)
ACTIVE_STATES = frozenset({"ASSIGNED", "BUILDING", "RUNNING"})
OPEN_STATES = ",".join(("pending", *sorted(ACTIVE_STATES))).lower()
"""The filter of lists for jobs and tasks that have not ended."""


def short_state(state: str) -> str:
    """Return running, success or failed, as workflow managers such as Snakemake expect."""
    if state not in TERMINAL_STATES:
        return "running"
    return "success" if state == "SUCCEEDED" else "failed"
