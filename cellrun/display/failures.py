"""Print which tasks of a job failed, why, and the commands that show more."""

from cellrun.addresses import task_address
from cellrun.api.session import Session
from cellrun.display.terminal import stderr
from cellrun.documents import Job, Task
from cellrun.errors import ClientError

SHOWN_TASKS = 3
_FAILED = "failed,worker_failed,unschedulable,preempted"
# The exit code of a program that a signal ended is 128 and the number of the signal.
_SIGNALS = {132: "SIGILL", 134: "SIGABRT", 135: "SIGBUS", 136: "SIGFPE", 137: "SIGKILL"} | {
    139: "SIGSEGV",
    143: "SIGTERM",
}


def print_failed_tasks(session: Session, job: Job) -> None:
    """Print the first tasks that failed, or else were killed; nothing if they cannot be read."""
    try:
        for state in (_FAILED, "killed"):
            tasks = list(session.tasks(job["id"], state=state, limit=SHOWN_TASKS + 1))
            if tasks:
                break
        lines = [describe_failure(session, task) for task in tasks[:SHOWN_TASKS]]
    except ClientError:
        return  # the job's own reason is printed already
    if len(tasks) > SHOWN_TASKS:
        lines.append(f"… and more: cellrun job {job['id']}")
    for line in lines:
        stderr().print(f"  {line}")


def describe_failure(session: Session, task: Task) -> str:
    """Return `7/main.0 failed on cell-1: out of memory (exit 137, SIGKILL); cellrun logs …`."""
    reason, code = task["failure_reason"], task["exit_code"]
    if code is None and task["attempt_number"]:
        # The attempt has the message of the engine or the registry.
        attempts = session.attempts(task["id"])
        reason = (attempts[-1]["failure_reason"] if attempts else "") or reason
    cell = f" on {task['cell_id']}" if task["cell_id"] else ""
    text = f"{task_address(task)} {task['state'].lower()}{cell}"
    if reason:
        text += f": {reason}"
    if code is not None and (figures := _exit_text(code, reason)):
        text += f" ({figures})"
    if task["attempt_number"]:
        return f"{text}; its log: cellrun logs {task_address(task)}"
    return f"{text}; its history: cellrun history {task_address(task)}"


def _exit_text(code: int, reason: str) -> str:
    """Return the exit code and the signal, without what the reason has already."""
    parts = [] if f"{code}" in reason.split() else [f"exit code {code}"]
    signal = _SIGNALS.get(code)
    if signal is not None and signal not in reason:
        parts.append(signal)
    return ", ".join(parts)
