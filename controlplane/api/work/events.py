"""The endpoint of events. The middleware in front of Django streams; here are its errors."""

from django.http import HttpResponse
from rest_framework.request import Request

from controlplane import clock
from controlplane.api.base import ApiView
from controlplane.api.openapi import Operation
from controlplane.api.problems import problem
from controlplane.api.streams.event_query import (
    EVENT_PARAMETERS,
    RESUME_HEADER,
    read_event_query,
)

_EXAMPLE = (
    "id: MTcuMTc5NTc4MDgwMA\n"
    "event: task\n"
    'data: {"at":"2031-05-04T12:00:00.5Z","job":7,"task":"7/main.0","task_id":12,'
    '"from":"ASSIGNED","to":"RUNNING","reason":"started",'
    '"text":"its program runs"}\n\n'
)


class Events(ApiView):
    """Changes of jobs and tasks as they happen."""

    @Operation(
        id="stream_events",
        answer="text/event-stream",
        example=_EXAMPLE,
        parameters=EVENT_PARAMETERS,
        problems=(404, 410, 422),
    )
    def list(self, request: Request) -> HttpResponse:
        """Stream changes of states as server-sent events, until the client disconnects.

        Each event has an `id`, a position from which a stream can continue; `event`, which is `job`
        or `task`; and `data`, a document with `at`, `job`, `task` (JOB/group.index, null for a
        change of the job itself), `task_id`, `from` (null at the submission), `to`, `reason` and
        its `text`. No change is lost, and one may arrive twice. 410: changes after the position may
        have been deleted.
        """
        resumed_at = request.headers.get(RESUME_HEADER)
        read_event_query(self.query, self.access, resumed_at, now=clock.now())
        # What prevented the stream has passed. A response without it would be taken for a stream
        # without changes.
        return problem(429, "the stream could not begin: try again", headers={"Retry-After": "1"})
