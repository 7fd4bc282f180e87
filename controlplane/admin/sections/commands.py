"""The section of a page with the commands that show or change the same in a terminal."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from controlplane.admin.base import Section
from controlplane.contract.states import TaskState
from controlplane.domain.state.states import UNSUCCESSFUL
from controlplane.models import Attempt, Job, Task

# A longer document is not pasted into a terminal, but submitted from a file.
_MAX_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class Commands(Section):
    """Commands, each with a button that copies it."""

    template: ClassVar[str] = "controlplane/section_commands.html"
    lines: Sequence[str] = ()


def job_commands(job: Job, counts: Mapping[int, int]) -> Commands:
    """Return the commands for a job in its state; `counts`: its tasks by state."""
    number = job.pk
    lines = [f"cellrun job {number}", f"cellrun logs {number}", f"cellrun history {number}"]
    if counts.get(TaskState.PENDING):
        lines.append(f"cellrun explain {number}")
    if job.finished_at is None:
        lines += [f"cellrun logs -f {number}", f"cellrun cancel {number}"]
    elif UNSUCCESSFUL & {state for state, count in counts.items() if count}:
        lines.append(f"cellrun retry {number}")
    return _commands(lines)


def task_commands(task: Task) -> Commands:
    """Return the commands for a task in its state."""
    names = ["logs", "history", "artifacts"]
    if task.state == TaskState.PENDING:
        names.append("explain")
    return _commands([f"cellrun {name} --task {task.pk}" for name in names])


def attempt_commands(attempt: Attempt) -> Commands:
    """Return the commands for an attempt."""
    return _commands([f"cellrun {name} {attempt.pk}" for name in ("history", "artifacts")])


def submit_command(spec: Mapping[str, Any]) -> str:
    """Return the command that submits a document as another job; empty if it is too long.

    The command has no guid, with which it would return the existing job.
    """
    document = {name: value for name, value in spec.items() if name != "guid"}
    text = json.dumps(document, indent=2, ensure_ascii=False)
    return f"cellrun submit - <<'JOB'\n{text}\nJOB" if len(text) <= _MAX_CHARS else ""


def _commands(lines: Sequence[str]) -> Commands:
    return Commands("Commands", anchor="commands", lines=lines)
