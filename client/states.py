"""Name the terminal states of jobs and tasks."""

TERMINAL_STATES = frozenset(
    {"SUCCEEDED", "FAILED", "KILLED", "WORKER_FAILED", "UNSCHEDULABLE", "PREEMPTED"}
)
