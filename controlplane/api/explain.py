"""The door that says why a task waits, or where it is."""

from django.http import HttpResponse
from rest_framework.request import Request

from controlplane import clock
from controlplane.api import schema
from controlplane.api.answers import answer
from controlplane.api.door import Door
from controlplane.queries.explain import explain_task
from controlplane.queries.one_offs import find_task_id


class TaskExplain(Door):
    """Why a task is where it is."""

    @schema.describe("explain_task", answers={200: schema.ref("Explanation")}, problems=(404,))
    def get(self, request: Request, task: int | str) -> HttpResponse:
        """Say why a task waits, where it stands in the queue, or where it is."""
        return answer(explain_task(find_task_id(task), now=clock.now()))
