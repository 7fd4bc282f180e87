"""A client of Diego at the API: it desires and fetches tasks, and knows no jobs."""

from typing import Any

from controlplane.commands.jobs.cancel import cancel_task
from controlplane.commands.jobs.one_offs import desire_task
from controlplane.models import Attempt, Job
from controlplane.queries.jobs.one_offs import find_task_id
from controlplane.queries.views.tasks import TaskFilter, find_tasks, get_task
from controlplane.spec.one_off import parse_one_off
from tests.scenarios.stage import SMALL, Stage


def desire(stage: Stage, guid: str = "one", domain: str = "build", **definition: Any) -> Job:
    """A small task; the job that it has become."""
    body = {"guid": guid, "domain": domain, "definition": {**SMALL, **definition}}
    task_id = desire_task(wanted=parse_one_off(body), body=body, owner=stage.owner, now=stage.now())
    return Job.objects.get(tasks__pk=task_id)


def running(stage: Stage, guid: str = "one", **definition: Any) -> Attempt:
    """The attempt of a task whose program runs."""
    job = desire(stage, guid, **definition)
    stage.place()
    attempt = stage.last(job)
    stage.start(attempt)
    return attempt


def completed(stage: Stage, guid: str = "one", **definition: Any) -> int:
    """A task that succeeded; its id."""
    attempt = running(stage, guid, **definition)
    stage.succeed(attempt)
    return int(attempt.task_id)


def fetch(stage: Stage, guid: str = "one") -> dict[str, Any]:
    """The task as its client sees it. Raises NotFound."""
    return get_task(find_task_id(guid, readable=None), now=stage.now())


def lifecycle(stage: Stage, guid: str = "one") -> str:
    return str(fetch(stage, guid)["lifecycle"])


def listed(stage: Stage, **wanted: Any) -> list[str]:
    """The guids of the tasks that are listed, newest first."""
    found = find_tasks(TaskFilter(**wanted), before=None, limit=100, now=stage.now())
    return [task["guid"] for task in found]


def cancel(stage: Stage, guid: str = "one") -> None:
    """Raises NotFound, Conflict."""
    cancel_task(
        task_id=find_task_id(guid, readable=None),
        reason="",
        force=False,
        actor="me",
        now=stage.now(),
    )
