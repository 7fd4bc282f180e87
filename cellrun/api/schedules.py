"""Call the API about schedules: write, read, pause, resume, run and delete them."""

from collections.abc import Iterator, Mapping
from typing import Any

from cellrun.api.paths import path_to, project_query
from cellrun.api.transport import ApiTransport
from cellrun.documents import Job, ScheduleDocument, ScheduleFiringDocument


class ScheduleCalls(ApiTransport):
    """The calls about schedules. Every method may raise Unreachable or ApiError.

    `project` is a name or domain/name; None: default/default, or else the caller's only one.
    """

    def schedules(self, *, project: str | None = None) -> list[ScheduleDocument]:
        """Return a project's schedules by name."""
        return list(self._pages("/schedules", project_query(project)))

    def schedule(self, name: str, *, project: str | None = None) -> ScheduleDocument:
        """Return one schedule with its next instant."""
        return self._call("GET", path_to("schedules", name), query=project_query(project))

    def put_schedule(
        self, name: str, body: Mapping[str, Any], *, project: str | None = None
    ) -> ScheduleDocument:
        """Create or replace a schedule: `cron`, `job`, and the optional fields of docs/api.md."""
        path = path_to("schedules", name)
        return self._call("PUT", path, query=project_query(project), body=body)

    def pause_schedule(
        self, name: str, *, reason: str = "", project: str | None = None
    ) -> ScheduleDocument:
        """Fire no further instant."""
        return self._act(name, "pause", {"reason": reason}, project)

    def resume_schedule(
        self, name: str, *, reason: str = "", project: str | None = None
    ) -> ScheduleDocument:
        """Fire again from the next instant on."""
        return self._act(name, "resume", {"reason": reason}, project)

    def run_schedule(self, name: str, *, project: str | None = None) -> Job:
        """Submit the job of a schedule now."""
        return self._act(name, "run", {}, project)

    def delete_schedule(self, name: str, *, project: str | None = None) -> None:
        """Delete a schedule with its history; its jobs stay."""
        self._call("DELETE", path_to("schedules", name), query=project_query(project))

    def firings(
        self, name: str, *, limit: int = 50, project: str | None = None
    ) -> Iterator[ScheduleFiringDocument]:
        """Yield what became of the instants, the latest first."""
        return self._pages(path_to("schedules", name, "firings"), project_query(project), limit)

    def _act(self, name: str, verb: str, body: Mapping[str, Any], project: str | None) -> Any:
        path = path_to("schedules", name, verb)
        return self._call("POST", path, query=project_query(project), body=body)
