"""Endpoints of schedules: write, list, show, pause, resume, run, delete, history."""

from functools import partial
from typing import Any

from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import clock
from controlplane.api import charges
from controlplane.api.base import ApiView, caller_of
from controlplane.api.openapi import ONLY_PROJECT, Operation, parameter
from controlplane.api.requests import read_part
from controlplane.api.schemas import EmptyRequest, HoldReleaseRequest, Job
from controlplane.api.walls import check_change, check_project, select_project
from controlplane.api.work import schedule_schemas as schemas
from controlplane.commands.schedules import configure
from controlplane.commands.schedules.fire import run_schedule
from controlplane.domain.errors import NotFound
from controlplane.domain.roles import Permission
from controlplane.queries import schedules
from controlplane.queries.views import jobs
from controlplane.spec import parse_job

_WHERE = [
    parameter("domain", "Domain of the project; default `default`."),
    parameter("project", f"Project of the schedules; default `default`. {ONLY_PROJECT}"),
]


class Schedules(ApiView):
    """Schedules of a project."""

    document = schemas.ScheduleDocument
    lookup_field = "name"
    lookup_value_converter = "name"

    @Operation(page=True, parameters=_WHERE, problems=(404, 422))
    def list(self, request: Request) -> Response:
        """List a project's schedules by name."""
        found = partial(schedules.list_schedules, self.access, self._project(Permission.READ))
        return self.answer_page(found, "name", "after")

    @Operation(parameters=_WHERE, problems=(422,))
    def retrieve(self, request: Request, name: str) -> Response:
        """Show a schedule with its next instant."""
        return self._answer(self._find(name))

    @Operation(body=schemas.ScheduleRequest, codes=(200, 201), parameters=_WHERE, problems=(409,))
    def update(self, request: Request, name: str) -> Response:
        """Create or replace a schedule (submitters; one of another user: managers).

        The caller becomes its owner. The job is checked as by a submission. 409: the project is
        archived, or has 1,000 schedules.
        """
        project_id = self._project(Permission.SUBMIT)
        self._check_replacement(project_id, name)
        wanted = read_part(request, schemas.ScheduleRequest)
        is_new = configure.put_schedule(
            project_id=project_id,
            name=name,
            wanted=wanted.fields(),
            owner=caller_of(request),
            now=clock.now(),
        )
        return self._answer(schedules.find_schedule(project_id, name), 201 if is_new else 200)

    @Operation(parameters=_WHERE, problems=(422,))
    def destroy(self, request: Request, name: str) -> Response:
        """Delete a schedule with its history (its owner, or a manager). Its jobs stay."""
        found = self._find(name, "delete")
        configure.delete_schedule(schedule_id=found.pk, actor=self.actor, now=clock.now())
        return Response(status=204)

    @Operation(body=HoldReleaseRequest, parameters=_WHERE, problems=(409,))
    @action(detail=True, methods=["post"], url_path="pause")
    def pause_schedule(self, request: Request, name: str) -> Response:
        """Fire no further instant (its owner, or a manager). 409: it is paused already."""
        found = self._find(name, "pause")
        reason = read_part(request, HoldReleaseRequest).reason
        configure.pause_schedule(
            schedule_id=found.pk, reason=reason, actor=self.actor, now=clock.now()
        )
        return self._answer(schedules.find_schedule(found.project_id, name))

    @Operation(body=HoldReleaseRequest, parameters=_WHERE, problems=(409,))
    @action(detail=True, methods=["post"], url_path="resume")
    def resume_schedule(self, request: Request, name: str) -> Response:
        """Fire again from the next instant on (its owner, or a manager). 409: it is not paused."""
        found = self._find(name, "resume")
        reason = read_part(request, HoldReleaseRequest).reason
        configure.resume_schedule(
            schedule_id=found.pk, reason=reason, actor=self.actor, now=clock.now()
        )
        return self._answer(schedules.find_schedule(found.project_id, name))

    @Operation(body=EmptyRequest, codes=(201,), answer=Job, parameters=_WHERE, problems=(409,))
    @action(detail=True, methods=["post"], url_path="run")
    def run_schedule(self, request: Request, name: str) -> Response:
        """Submit the job now, whatever the overlap rule (its owner, or a manager).

        Also if the schedule is paused. 409: the job is refused.
        """
        found = self._find(name, "run")
        read_part(request, EmptyRequest)
        spec = parse_job(found.job)
        charges.charge_jobs(request, jobs=1, tasks=spec.total_replicas())
        job_id = run_schedule(found, actor=self.actor, now=clock.now())
        made = Response(jobs.get_job(job_id), status=201)
        made["Location"] = request.build_absolute_uri(f"/api/v1/jobs/{job_id}")
        return made

    @Operation(page=True, answer=schemas.ScheduleFiringDocument, parameters=_WHERE)
    @action(detail=True, url_path="firings")
    def list_firings(self, request: Request, name: str) -> Response:
        """List what became of the instants of the last 30 days, the latest first."""
        found = self._find(name)
        return self.answer_page(partial(schedules.list_firings, found.pk), "id")

    def _project(self, wanted: Permission) -> int:
        names = select_project(self.access, self.query.text("domain"), self.query.text("project"))
        return check_project(self.access, *names, wanted).project_id

    def _find(self, name: str, verb: str = "") -> Any:
        """Return a schedule that the caller may read; with `verb`, change."""
        found = schedules.find_schedule(self._project(Permission.READ), name)
        if verb:
            check_change(self.access, schedules.place_of(found), verb)
        return found

    def _check_replacement(self, project_id: int, name: str) -> None:
        try:
            found = schedules.find_schedule(project_id, name)
        except NotFound:
            return
        check_change(self.access, schedules.place_of(found), "replace")

    def _answer(self, found: Any, status: int = 200) -> Response:
        return self.answer(schedules.describe_schedule(found, self.access), status=status)
