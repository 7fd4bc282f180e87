"""Endpoints of jobs: submit, list, show, hold, move, cancel, retry, delete."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import clock
from controlplane.api import charges, schemas
from controlplane.api.base import ApiView, caller_of
from controlplane.api.openapi import (
    SINCE_EXAMPLE,
    Operation,
    fields_parameter,
    parameter,
    ref,
)
from controlplane.api.problems import BadQuery
from controlplane.api.requests import Parameters, read_body, read_part
from controlplane.api.walls import check_job, check_named_project, check_submission
from controlplane.api.work.forecast_schemas import DryRun
from controlplane.api.work.history import MERGED, answer_history
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.jobs.dry_run import dry_run
from controlplane.commands.jobs.holds import hold_job, release_job
from controlplane.commands.jobs.move import move_job
from controlplane.commands.jobs.rerun import retry_job
from controlplane.commands.jobs.submit import Submission, submit_jobs
from controlplane.commands.retention.deletion import delete_job
from controlplane.domain.jobs.moves import QueueEnd
from controlplane.domain.jobs.submission import JobsRefused
from controlplane.domain.roles import Permission
from controlplane.domain.state.states import Band
from controlplane.queries.jobs.filters import JobFilter
from controlplane.queries.tenancy.foreign_jobs import hide_foreign_jobs
from controlplane.queries.views import artifacts, history, jobs, tasks
from controlplane.spec import Fault, InvalidSpec, JobSpec, parse_job
from controlplane.spec.fields import is_guid

MAX_BATCH = 1_000
MAX_IDS = 1_000
# A task may have a thousand artifacts.
MAX_TASKS_WITH_ARTIFACTS = 20
_JOB_LIST = {"type": "array", "maxItems": MAX_BATCH, "items": ref("JobDocument")}
_BATCH = {
    "anyOf": [
        _JOB_LIST,
        {"type": "object", "required": ["jobs"], "properties": {"jobs": _JOB_LIST}},
    ]
}


class Jobs(ApiView):
    """Jobs. Submissions and lists are hot paths: pydantic reads, and responses are plain data."""

    document = schemas.Job
    lookup_url_kwarg = "job_id"
    lookup_value_converter = "id"

    @Operation(body=ref("JobDocument"), codes=(201, 200), problems=(409,))
    def create(self, request: Request) -> Response:
        """Submit a job. 200 if a job with the same guid (or `Idempotency-Key`) and body exists."""
        Parameters(request)
        body = read_body(request)
        spec = _with_key(parse_job(body), _read_key(request))
        check_submission(self.access, [spec])
        charges.charge_jobs(request, jobs=1, tasks=spec.total_replicas())
        [submission] = submit_jobs(
            specs=[spec], bodies=[body], owner=caller_of(request), now=clock.now()
        )
        return self._answer_submission(submission)

    @Operation(
        page=True,
        parameters=[
            parameter("state", "Names of states, separated by commas."),
            parameter("project", "A project that the caller may read, as domain/project."),
            parameter("pool", "Name of the pool."),
            parameter("id", "Ids of jobs, separated by commas; at most 1,000.", example="1,2,3"),
            parameter("name", "Name of the jobs.", example="nightly"),
            parameter("guid", "Guid of the jobs: one in each project."),
            parameter("owner", "Name of the user that submitted the jobs."),
            parameter("label", "key=value; repeat the parameter for more labels.", many=True),
            parameter(
                "search",
                "An id, the beginning of a name or guid, or, of the newest 5,000 jobs, a part of a"
                " name, a guid or a label key=value, regardless of case. At most 1,000 jobs match.",
            ),
            parameter(
                "since",
                "Only jobs whose own state has changed at or after this time (submitted, started,"
                " ended). 422 if the history has more than 100,000 rows since then.",
                example=SINCE_EXAMPLE,
            ),
            fields_parameter("id,state,finished_at"),
        ],
        problems=(404, 422),
    )
    def list(self, request: Request) -> Response:
        """List jobs, newest first."""
        project = self.query.text("project")
        wanted = JobFilter(
            readable=self.access.readable
            if project is None
            else [check_named_project(self.access, project).project_id],
            states=self.query.states(),
            pool=self.query.text("pool"),
            name=self.query.text("name"),
            guid=self.query.text("guid"),
            owner=self.query.text("owner"),
            ids=self.query.ids("id", most=MAX_IDS),
            labels=self.query.labels(),
            search=self.query.text("search"),
            since=self.query.instant("since"),
        )
        found = partial(jobs.list_jobs, wanted)
        if wanted.search is None and wanted.since is None:
            return self.answer_page(found, "id")
        # It reads names and labels of thousands of jobs, which may be long, or much of the history.
        with charges.charge_time(request):
            return self.answer_page(found, "id")

    @Operation(body=_BATCH, codes=(201,), answer=schemas.Batch, problems=(409,))
    def submit_jobs(self, request: Request) -> Response:
        """Submit up to 1,000 jobs, as a list or as {"jobs": [...]}: all of them or none."""
        Parameters(request)
        if "Idempotency-Key" in request.headers:
            raise BadQuery("Idempotency-Key", "must not be set for a batch: give each job a guid")
        batch = _read_batch(read_body(request))
        specs = batch.parse()
        tasks_of_all = sum(spec.total_replicas() for spec in specs)
        charges.charge_jobs(request, jobs=len(specs), tasks=tasks_of_all)
        try:
            check_submission(self.access, specs)
            submissions = submit_jobs(
                specs=specs, bodies=batch.bodies, owner=caller_of(request), now=clock.now()
            )
        except JobsRefused as refused:
            faults = [batch.place(position, fault) for position, fault in refused.faults]
            raise InvalidSpec(faults) from None
        return self.answer({"results": _results(submissions), "next": None}, status=201)

    @Operation(body=ref("JobDocument"), answer=DryRun, problems=(409,))
    def dry_run_job(self, request: Request) -> Response:
        """Forecast where a job would be placed, or why it would wait or be refused."""
        Parameters(request)
        body = read_body(request)
        spec = parse_job(body)
        check_submission(self.access, [spec])
        charges.charge_jobs(request, jobs=1, tasks=spec.total_replicas())
        found = dry_run(spec=spec, body=body, owner=caller_of(request), now=clock.now())
        return self.answer(hide_foreign_jobs(asdict(found), self.access.readable))

    def retrieve(self, request: Request, job_id: int) -> Response:
        """Show one job."""
        check_job(self.access, job_id)
        return self.answer(jobs.get_job(job_id))

    @Operation(
        parameters=[parameter("claim", "For the job of a one-off task: the claim of the task.")],
        problems=(409,),
    )
    def destroy(self, request: Request, job_id: int) -> Response:
        """Delete a job that has ended (its submitter, or a manager); it is hidden at once.

        409: it has not ended, or it is the job of a one-off task that is not RESOLVING by `claim`.
        """
        claim = self.query.claim()
        check_job(self.access, job_id, Permission.CHANGE, "delete")
        delete_job(job_id=job_id, claim=claim, actor=self.actor, now=clock.now())
        return Response(status=204)

    @Operation(
        page=True,
        answer=schemas.Task,
        parameters=[
            parameter("state", "Names of states, separated by commas."),
            parameter("group", "Name of the group."),
            parameter("index", "Index in the group.", int),
            fields_parameter("index,state,exit_code"),
        ],
        problems=(422,),
    )
    @action(detail=True, url_path="tasks")
    def list_tasks_of_job(self, request: Request, job_id: int) -> Response:
        """List the tasks of a job, by group and index."""
        check_job(self.access, job_id)
        found = partial(
            tasks.list_tasks,
            job_id,
            states=self.query.states(),
            group=self.query.text("group"),
            index=self.query.number("index", least=0),
            now=clock.now(),
        )
        return self.answer_page(self.hiding(found), "id", "after")

    @Operation(
        page=True,
        answer=schemas.TaskArtifacts,
        parameters=[parameter("group", "Name of the group.")],
    )
    @action(detail=True, url_path="artifacts")
    def list_artifacts_of_job(self, request: Request, job_id: int) -> Response:
        """List the tasks of a job that have artifacts, by group and index; at most 20 in a page.

        The artifacts are those of the last attempt that succeeded, or else of the last attempt.
        """
        check_job(self.access, job_id)
        page = self.begin_page()
        page.limit = min(page.limit, MAX_TASKS_WITH_ARTIFACTS)
        found = partial(artifacts.list_job_artifacts, job_id, group=self.query.text("group"))
        return page.get_paginated_response(page.take(found, "task", "after"))

    @Operation(page=True, answer=schemas.Change, parameters=MERGED)
    @action(detail=True, url_path="history")
    def list_history_of_job(self, request: Request, job_id: int) -> Response:
        """List the changes of a job and its tasks, newest first."""
        check_job(self.access, job_id)
        return answer_history(self, partial(history.find_job_history, job_id))

    @Operation(body=schemas.CancelRequest, codes=(202,))
    @action(detail=True, methods=["post"], url_path="cancel")
    def cancel_job(self, request: Request, job_id: int) -> Response:
        """Cancel a job (its submitter, or a manager). A job that has ended does not change.

        With `force`, containers are killed at once, without a grace period: also containers that
        are being stopped, and those of a deleted job.
        """
        options = read_part(request, schemas.CancelRequest)
        check_job(self.access, job_id, Permission.CHANGE, "cancel", though_stopping=options.force)
        cancel_job(
            job_id=job_id,
            reason=options.reason,
            force=options.force,
            actor=self.actor,
            now=clock.now(),
        )
        return self.answer(jobs.get_job(job_id, though_deleted=options.force), status=202)

    @Operation(body=schemas.HoldRequest, problems=(409,))
    @action(detail=True, methods=["post"], url_path="hold")
    def hold_job(self, request: Request, job_id: int) -> Response:
        """Place no waiting task of a job until its release (its submitter, or a manager).

        Running tasks continue, and the time does not count for the scheduling timeout. A hold by a
        manager or an operator can only be changed and released by the same or a higher role. 409:
        the job has ended.
        """
        role = check_job(self.access, job_id, Permission.CHANGE, "hold")
        reason = read_part(request, schemas.HoldRequest).reason
        hold_job(job_id=job_id, reason=reason, role=role, actor=self.actor, now=clock.now())
        return self.answer(jobs.get_job(job_id))

    @Operation(body=schemas.HoldReleaseRequest, problems=(409,))
    @action(detail=True, methods=["post"], url_path="release")
    def release_job(self, request: Request, job_id: int) -> Response:
        """Release a job from its own hold (see `hold`). 409: it is not held."""
        role = check_job(self.access, job_id, Permission.CHANGE, "release")
        reason = read_part(request, schemas.HoldReleaseRequest).reason
        release_job(job_id=job_id, reason=reason, role=role, actor=self.actor, now=clock.now())
        return self.answer(jobs.get_job(job_id))

    @Operation(body=schemas.MoveRequest, problems=(409,))
    @action(detail=True, methods=["post"], url_path="move")
    def move_job(self, request: Request, job_id: int) -> Response:
        """Move a job to the front or end of its band or to another (its submitter, or a manager).

        In a pool with a sequencer other than `drf`, `fair_share` and `fair_projects`, a move to the
        front passes the jobs of other owners and needs an operator; so does a band above the
        highest one of the owner and the project. 409: the job has ended.
        """
        role = check_job(self.access, job_id, Permission.CHANGE, "move")
        wanted = read_part(request, schemas.MoveRequest)
        move_job(
            job_id=job_id,
            to=None if wanted.to is None else QueueEnd(wanted.to),
            band=None if wanted.band is None else Band[wanted.band.upper()],
            reason=wanted.reason,
            role=role,
            actor=self.actor,
            now=clock.now(),
        )
        return self.answer(jobs.get_job(job_id))

    @Operation(body=schemas.EmptyRequest, codes=(201, 200), problems=(409,))
    @action(detail=True, methods=["post"], url_path="retry")
    def retry_job(self, request: Request, job_id: int) -> Response:
        """Create a job of the tasks that did not succeed (its submitter, or a manager).

        `Idempotency-Key` becomes the guid of the new job. 200 if the same key created it before.
        """
        check_job(self.access, job_id, Permission.CHANGE, "retry")
        read_part(request, schemas.EmptyRequest)
        submission = retry_job(
            job_id=job_id, guid=_read_key(request), actor=self.actor, now=clock.now()
        )
        made = self._answer_submission(submission)
        counts = made.data["task_status_count"].values()
        charges.charge_jobs(
            request, jobs=1, tasks=sum(sum(group["phase"].values()) for group in counts)
        )
        return made

    def _answer_submission(self, submission: Submission) -> Response:
        job = jobs.get_job(submission.job_id)
        made = self.answer(job, status=201 if submission.created else 200)
        made["Location"] = self.request.build_absolute_uri(f"/api/v1/jobs/{submission.job_id}")
        return made


@dataclass(frozen=True, slots=True)
class _BatchBody:
    """The jobs of a batch, and the prefix of the paths of their fields."""

    bodies: Sequence[Any]
    prefix: str

    def parse(self) -> list[JobSpec]:
        """Return the jobs. Raise InvalidSpec with the faults of all of them."""
        specs, faults = [], []
        for position, body in enumerate(self.bodies):
            try:
                specs.append(parse_job(body))
            except InvalidSpec as error:
                faults += [self.place(position, fault) for fault in error.faults]
        if faults:
            raise InvalidSpec(faults)
        return specs

    def place(self, position: int, fault: Fault) -> Fault:
        """Return `fault` of the job at `position` with its path in the batch."""
        path = f"{self.prefix}[{position}]" + (f".{fault.field}" if fault.field else "")
        return Fault(path, fault.detail)


def _read_batch(document: Any) -> _BatchBody:
    if isinstance(document, list):
        bodies, prefix = document, ""
    elif isinstance(document, dict) and document.keys() == {"jobs"}:
        bodies, prefix = document["jobs"], "jobs"
    else:
        raise InvalidSpec([Fault("", 'must be a list of jobs, or {"jobs": [...]}')])
    if not isinstance(bodies, list):
        raise InvalidSpec([Fault(prefix, "must be a list of jobs")])
    if not 1 <= len(bodies) <= MAX_BATCH:
        text = f"must have from 1 to {MAX_BATCH} jobs, not {len(bodies)}"
        raise InvalidSpec([Fault(prefix, text)])
    return _BatchBody(bodies, prefix)


def _results(submissions: Sequence[Submission]) -> list[dict[str, Any]]:
    found = jobs.load_jobs([submission.job_id for submission in submissions])
    return [
        {**job, "created": submission.created}
        for job, submission in zip(found, submissions, strict=True)
    ]


def _with_key(spec: JobSpec, key: str | None) -> JobSpec:
    """Return `spec` with the guid of the header, which is equivalent to the field."""
    if key is None:
        return spec
    if spec.guid not in (None, key):
        raise BadQuery(
            "Idempotency-Key", "must be equal to the guid of the job: set one of the two"
        )
    return spec.model_copy(update={"guid": key})


def _read_key(request: Request) -> str | None:
    key: str | None = request.headers.get("Idempotency-Key")
    if key is not None and not is_guid(key):
        text = "must have 1 to 255 letters, digits or (not first) . _ : @ / + = -"
        raise BadQuery("Idempotency-Key", text)
    return key
