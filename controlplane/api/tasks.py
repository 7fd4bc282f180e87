"""The doors of tasks: look, cancel."""

from django.http import HttpResponse
from rest_framework.request import Request

from controlplane import clock
from controlplane.api import schema
from controlplane.api.answers import answer
from controlplane.api.bodies import Parameters, read_part
from controlplane.api.door import Door, check_may_change
from controlplane.api.pages import PAGING, Page
from controlplane.api.shapes import CancelRequest
from controlplane.commands.endings import cancel_task
from controlplane.queries import attempts, tasks


class TaskDetail(Door):
    """One task."""

    @schema.describe("get_task", answers={200: schema.ref("Task")}, problems=(404,))
    def get(self, request: Request, task_id: int) -> HttpResponse:
        """Look at one task."""
        return answer(tasks.get_task(task_id, now=clock.now()))


class TaskAttempts(Door):
    """The attempts of a task."""

    @schema.describe(
        "list_attempts_of_task",
        answers={200: schema.page_of("Attempt")},
        parameters=schema.PAGING,
        problems=(400, 404),
    )
    def get(self, request: Request, task_id: int) -> HttpResponse:
        """List the attempts of a task, newest first."""
        page = Page(request, Parameters(request, *PAGING))
        found = attempts.list_attempts(task_id, before=page.number, limit=page.limit + 1)
        return page.answer(found, lambda attempt: attempt["number"])


class TaskCancel(Door):
    """Cancel a task."""

    @schema.describe(
        "cancel_task",
        body="CancelRequest",
        answers={202: schema.ref("Task")},
        problems=(400, 403, 404, 409, 413, 415, 422),
    )
    def post(self, request: Request, task_id: int) -> HttpResponse:
        """Cancel a task, and with it its job (its submitter, or an operator)."""
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
