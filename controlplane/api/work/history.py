"""Endpoints of the history of jobs, tasks and attempts."""

from uuid import UUID

from django.http import HttpResponse
from rest_framework.request import Request

from controlplane.api import openapi
from controlplane.api.base import ApiView
from controlplane.api.pages import PAGING, PageRequest
from controlplane.api.requests import Parameters
from controlplane.queries.jobs.one_offs import find_task_id
from controlplane.queries.views import history

_PARAMETERS = [
    *openapi.PAGING,
    openapi.parameter(
        "merged", "false: each row for itself. Else what repeats is one entry.", bool
    ),
]


class JobHistory(ApiView):
    """The history of a job."""

    @openapi.describe(
        "list_history_of_job",
        answers={200: openapi.page_of("Change")},
        parameters=_PARAMETERS,
        problems=(400, 404),
    )
    def get(self, request: Request, job_id: int) -> HttpResponse:
        """List what happened to a job and its tasks, newest first."""
        asked = _HistoryRequest(request)
        return asked.answer(
            history.find_job_history(
                job_id, before=asked.before, limit=asked.limit, merged=asked.merged
            )
        )


class TaskHistory(ApiView):
    """The history of a task."""

    @openapi.describe(
        "list_history_of_task",
        answers={200: openapi.page_of("Change")},
        parameters=_PARAMETERS,
        problems=(400, 404),
    )
    def get(self, request: Request, task: int | str) -> HttpResponse:
        """List what happened to a task and its attempts, newest first."""
        asked = _HistoryRequest(request)
        return asked.answer(
            history.find_task_history(
                find_task_id(task), before=asked.before, limit=asked.limit, merged=asked.merged
            )
        )


class AttemptHistory(ApiView):
    """The history of an attempt."""

    @openapi.describe(
        "list_history_of_attempt",
        answers={200: openapi.page_of("Change")},
        parameters=_PARAMETERS,
        problems=(400, 404),
    )
    def get(self, request: Request, uid: UUID) -> HttpResponse:
        """List what happened to an attempt, newest first."""
        asked = _HistoryRequest(request)
        return asked.answer(
            history.find_attempt_history(
                uid, before=asked.before, limit=asked.limit, merged=asked.merged
            )
        )


class _HistoryRequest:
    """Which part of a history is asked for, and how it is to be shown."""

    def __init__(self, request: Request) -> None:
        parameters = Parameters(request, *PAGING, "merged")
        self._page = PageRequest(request, parameters)
        self.before, self.limit = self._page.number, self._page.limit
        self.merged = parameters.flag("merged", default=True)

    def answer(self, part: history.HistoryPage) -> HttpResponse:
        """The part as a page."""
        documents = [history.change_document(entry) for entry in part.entries]
        return self._page.answer_part(documents, part.following)
