"""Endpoints of tasks: list, show, cancel; create, claim and delete one-off tasks."""

from django.http import HttpResponse
from rest_framework.request import Request

from controlplane import clock
from controlplane.api import openapi
from controlplane.api.base import ApiView, caller_of, check_may_change
from controlplane.api.pages import PAGING, PageRequest
from controlplane.api.requests import Parameters, read_body, read_part
from controlplane.api.responses import answer
from controlplane.api.schemas import CancelRequest, EmptyRequest
from controlplane.commands.jobs.cancel import cancel_task
from controlplane.commands.jobs.one_offs import claim_task, delete_resolved_task, desire_task
from controlplane.queries.jobs.one_offs import find_task_id
from controlplane.queries.views import attempts, tasks
from controlplane.spec.one_off import parse_one_off


class Tasks(ApiView):
    """Desire a one-off task; list tasks."""

    @openapi.describe(
        "desire_task",
        body="OneOffRequest",
        answers={201: openapi.ref("Task")},
        problems=(400, 403, 409, 413, 415, 422),
    )
    def post(self, request: Request) -> HttpResponse:
        """Desire a one-off task. 409 if its guid is taken, by whomever, also with the same body."""
        Parameters(request)
        body = read_body(request)
        wanted = parse_one_off(body)
        task_id = desire_task(wanted=wanted, body=body, owner=caller_of(request), now=clock.now())
        made = answer(tasks.get_task(task_id, now=clock.now()), status=201)
        made["Location"] = request.build_absolute_uri(f"/api/v1/tasks/{wanted.guid}")
        return made

    @openapi.describe(
        "list_tasks",
        answers={200: openapi.page_of("Task")},
        parameters=[
            openapi.parameter("domain", "Of one-off tasks: the label of their client."),
            openapi.parameter("cell", "Name of the cell where they are, or were last."),
            openapi.parameter("state", "States by name, separated by commas."),
            openapi.parameter(
                "lifecycle", "PENDING, RUNNING, COMPLETED, RESOLVING; separated by commas."
            ),
            *openapi.PAGING,
        ],
        problems=(400,),
    )
    def get(self, request: Request) -> HttpResponse:
        """List tasks of all jobs, newest first."""
        parameters = Parameters(request, "domain", "cell", "state", "lifecycle", *PAGING)
        wanted = tasks.TaskFilter(
            domain=parameters.text("domain"),
            cell=parameters.text("cell"),
            states=parameters.states(),
            lifecycles=parameters.lifecycles(),
        )
        page = PageRequest(request, parameters)
        found = tasks.find_tasks(wanted, before=page.number, limit=page.limit + 1, now=clock.now())
        return page.answer(found, lambda task: task["id"])


class TaskDetail(ApiView):
    """One task, by its id or its guid."""

    @openapi.describe("get_task", answers={200: openapi.ref("Task")}, problems=(404,))
    def get(self, request: Request, task: int | str) -> HttpResponse:
        """Show one task, by its id or its guid."""
        return answer(tasks.get_task(find_task_id(task), now=clock.now()))

    @openapi.describe(
        "delete_task",
        answers={204: None},
        parameters=[openapi.parameter("claim", "The one by which the task is RESOLVING.")],
        problems=(400, 403, 404, 409),
    )
    def delete(self, request: Request, task: int | str) -> HttpResponse:
        """Delete a one-off task that is RESOLVING (its submitter, or an operator).

        Its guid is free at once. 409: it is not RESOLVING, or by another claim.
        """
        claim = Parameters(request, "claim").claim()
        task_id = find_task_id(task)
        check_may_change(request, tasks.find_task_owner(task_id), "delete")
        delete_resolved_task(
            task_id=task_id,
            claim=claim,
            actor=request.user.get_username(),
            why="resolved",
            now=clock.now(),
        )
        return HttpResponse(status=204)


class TaskResolving(ApiView):
    """Claim a one-off task that has completed."""

    @openapi.describe(
        "resolve_task",
        body="EmptyRequest",
        answers={200: openapi.ref("Claim")},
        problems=(400, 403, 404, 409, 413, 415, 422),
    )
    def post(self, request: Request, task: int | str) -> HttpResponse:
        """Claim a completed one-off task for 30 s (its submitter, or an operator).

        Of concurrent claims one wins. 409: it has not completed, another client has claimed it, or
        it is no one-off task.
        """
        task_id = find_task_id(task)
        owner_id = tasks.find_task_owner(task_id)
        read_part(request, EmptyRequest)
        check_may_change(request, owner_id, "resolve")
        claim = claim_task(task_id=task_id, by=request.user.get_username(), now=clock.now())
        return answer({"claim": claim})


class TaskAttempts(ApiView):
    """The attempts of a task."""

    @openapi.describe(
        "list_attempts_of_task",
        answers={200: openapi.page_of("Attempt")},
        parameters=openapi.PAGING,
        problems=(400, 404),
    )
    def get(self, request: Request, task: int | str) -> HttpResponse:
        """List the attempts of a task, newest first."""
        page = PageRequest(request, Parameters(request, *PAGING))
        found = attempts.list_attempts(find_task_id(task), before=page.number, limit=page.limit + 1)
        return page.answer(found, lambda attempt: attempt["number"])


class TaskCancel(ApiView):
    """Cancel a task."""

    @openapi.describe(
        "cancel_task",
        body="CancelRequest",
        answers={202: openapi.ref("Task")},
        problems=(400, 403, 404, 409, 413, 415, 422),
    )
    def post(self, request: Request, task: int | str) -> HttpResponse:
        """Cancel a task, and with it its job (its submitter, or an operator).

        With `force` its container is killed at once, also if its stop is under way.
        """
        task_id = find_task_id(task)
        owner_id = tasks.find_task_owner(task_id)
        asked = read_part(request, CancelRequest)
        check_may_change(request, owner_id)
        cancel_task(
            task_id=task_id,
            reason=asked.reason,
            force=asked.force,
            actor=request.user.get_username(),
            now=clock.now(),
        )
        return answer(tasks.get_task(task_id, now=clock.now()), status=202)
