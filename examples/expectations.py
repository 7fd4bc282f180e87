"""The expected result of each example: one table, compared with the tasks in the API."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cellrun.documents import Job, Task


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """The end of every task of a group; `None` stands for anything."""

    state: str
    exit_code: int | None = None
    attempts: int | None = None
    failure_reason: str | None = None
    result: Callable[[Task, Mapping[str, Any]], str] | None = None


@dataclass(frozen=True, slots=True)
class Expectation:
    """The end of a job. `cancelled`: it stays pending, and is cancelled once it has a reason."""

    job_state: str
    groups: Mapping[str, TaskEnd]
    cancelled: bool = False
    needs_limits: bool = False


def greeting(task: Task, spec: Mapping[str, Any]) -> str:
    """Return the output of a task of `hello`."""
    return f"hello from task {task['index']} of {spec['replicas']} on {task['cell_id']}"


def words_of_group(task: Task, spec: Mapping[str, Any]) -> str:
    """The words in the text that was given to the task's group."""
    return str(_words(next(group for group in spec["groups"] if group["name"] == task["group"])))


def words_of_all(_task: Task, spec: Mapping[str, Any]) -> str:
    """The words in all texts of a job."""
    return str(sum(_words(group) for group in spec["groups"]))


def _words(group: Mapping[str, Any]) -> int:
    return sum(len(given.get("content", "").split()) for given in group["inputs"])


_COUNTED = TaskEnd("SUCCEEDED", 0, 1, result=words_of_group)

EXPECTATIONS: Mapping[str, Expectation] = {
    "hello": Expectation(
        "SUCCEEDED", {"main": TaskEnd("SUCCEEDED", 0, attempts=1, result=greeting)}
    ),
    "wordcount": Expectation(
        "SUCCEEDED",
        {
            "count-alice": _COUNTED,
            "count-austen": _COUNTED,
            "count-melville": _COUNTED,
            "count-darwin": _COUNTED,
            "total": TaskEnd("SUCCEEDED", 0, attempts=1, result=words_of_all),
        },
    ),
    "retry": Expectation(
        "SUCCEEDED",
        {"main": TaskEnd("SUCCEEDED", 0, 2, result=lambda *_: "succeeded on attempt 2")},
    ),
    "oom": Expectation(
        "FAILED",
        {"main": TaskEnd("FAILED", 137, attempts=1, failure_reason="out of memory")},
        needs_limits=True,
    ),
    "too-big": Expectation("KILLED", {"main": TaskEnd("KILLED", attempts=0)}, cancelled=True),
}


def differences(name: str, spec: Mapping[str, Any], job: Job, tasks: list[Task]) -> list[str]:
    """Return one line for each difference from the table."""
    expected = EXPECTATIONS[name]
    found = _compare(f"{name} state", job["state"], expected.job_state)
    for group, end in expected.groups.items():
        of_group = [task for task in tasks if task["group"] == group]
        replicas = _replicas(spec, group)
        found += _compare(f"{name}/{group} number of tasks", len(of_group), replicas)
        for task in of_group:
            found += _task_differences(f"{name}/{group}.{task['index']}", end, task, spec)
    return found


def _task_differences(where: str, end: TaskEnd, task: Task, spec: Mapping[str, Any]) -> list[str]:
    found = _compare(f"{where} state", task["state"], end.state)
    if end.exit_code is not None:
        found += _compare(f"{where} exit code", task["exit_code"], end.exit_code)
    if end.attempts is not None:
        found += _compare(f"{where} attempts", task["attempt_number"], end.attempts)
    if end.failure_reason is not None:
        found += _compare(f"{where} failure reason", task["failure_reason"], end.failure_reason)
    if end.result is not None:
        found += _compare(f"{where} result", (task["result"] or "").strip(), end.result(task, spec))
    return found


def _compare(what: str, found: object, expected: object) -> list[str]:
    return [] if found == expected else [f"{what}: expected {expected!r}, found {found!r}"]


def _replicas(spec: Mapping[str, Any], group: str) -> int:
    for document in spec.get("groups", [{**spec, "name": "main"}]):
        if document["name"] == group:
            return int(document.get("replicas", 1))
    return 0
