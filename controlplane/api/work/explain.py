"""Endpoint that explains why a task waits, or where it runs."""

from django.http import HttpResponse
from rest_framework.request import Request

from controlplane import clock
from controlplane.api import openapi
from controlplane.api.base import ApiView
from controlplane.api.responses import answer
from controlplane.queries.jobs.one_offs import find_task_id
from controlplane.queries.views.explain import explain_task


class TaskExplain(ApiView):
    """Why a task is where it is."""

    @openapi.describe("explain_task", answers={200: openapi.ref("Explanation")}, problems=(404,))
    def get(self, request: Request, task: int | str) -> HttpResponse:
        """Explain why a task waits, its position in the queue, or where it runs."""
        return answer(explain_task(find_task_id(task), now=clock.now()))
