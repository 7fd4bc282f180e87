"""Name the states of jobs and tasks from which nothing follows."""

TERMINAL_STATES = frozenset(
    {"SUCCEEDED", "FAILED", "KILLED", "WORKER_FAILED", "UNSCHEDULABLE", "PREEMPTED"}
)
