"""Endpoints of jobs: submit, list, show, cancel, retry, delete."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpResponse
from rest_framework.request import Request

from controlplane import clock
from controlplane.api import openapi
from controlplane.api.base import ApiView, caller_of, check_may_change
from controlplane.api.pages import PAGING, PageRequest
from controlplane.api.problems import BadQuery
from controlplane.api.requests import Parameters, read_body, read_part
from controlplane.api.responses import answer
from controlplane.api.schemas import CancelRequest, EmptyRequest
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.jobs.rerun import retry_job
from controlplane.commands.jobs.submit import Submission, submit_jobs
from controlplane.commands.retention.deletion import delete_job
from controlplane.domain.jobs.submission import JobsRefused
from controlplane.queries.views import jobs, tasks
from controlplane.spec import Fault, InvalidSpec, JobSpec, parse_job
from controlplane.spec.fields import is_guid

MAX_BATCH = 1_000
_SUBMIT_PROBLEMS = (400, 403, 409, 413, 415, 422)


class Jobs(ApiView):
    """Submit a job; list jobs."""

    @openapi.describe(
        "submit_job",
        body="JobDocument",
        answers={201: openapi.ref("Job"), 200: openapi.ref("Job")},
        problems=_SUBMIT_PROBLEMS,
    )
    def post(self, request: Request) -> HttpResponse:
        """Submit a job. 200 if the same guid (or `Idempotency-Key`) and body are there already."""
        Parameters(request)
        body = read_body(request)
        spec = _with_key(parse_job(body), _read_key(request))
        [submission] = submit_jobs(
            specs=[spec], bodies=[body], owner=caller_of(request), now=clock.now()
        )
        document = jobs.get_job(submission.job_id)
        return _answer_submission(request, submission, document)

    @openapi.describe(
        "list_jobs",
        answers={200: openapi.page_of("Job")},
        parameters=[
            openapi.parameter("state", "States by name, separated by commas."),
            openapi.parameter("pool", "Name of a pool."),
            openapi.parameter("name", "Name of the jobs."),
            openapi.parameter("label", "key=value; repeat it for more.", many=True),
            *openapi.PAGING,
        ],
        problems=(400,),
    )
    def get(self, request: Request) -> HttpResponse:
        """List jobs, newest first."""
        parameters = Parameters(request, "state", "pool", "name", "label", *PAGING)
        wanted = jobs.JobFilter(
            states=parameters.states(),
            pool=parameters.text("pool"),
            name=parameters.text("name"),
            labels=parameters.labels(),
        )
        page = PageRequest(request, parameters)
        found = jobs.list_jobs(wanted, before=page.number, limit=page.limit + 1)
        return page.answer(found, lambda job: job["id"])


class JobBatch(ApiView):
    """Submit many jobs."""

    @openapi.describe(
        "submit_jobs",
        body={
            "anyOf": [
                {"type": "array", "maxItems": MAX_BATCH, "items": openapi.ref("JobDocument")},
                {
                    "type": "object",
                    "required": ["jobs"],
                    "properties": {
                        "jobs": {
                            "type": "array",
                            "maxItems": MAX_BATCH,
                            "items": openapi.ref("JobDocument"),
                        }
                    },
                },
            ]
        },
        answers={201: openapi.ref("Batch")},
        problems=_SUBMIT_PROBLEMS,
    )
    def post(self, request: Request) -> HttpResponse:
        """Submit up to 1,000 jobs: a list, or {"jobs": [...]}. All of them are taken, or none."""
        Parameters(request)
        if "Idempotency-Key" in request.headers:
            raise BadQuery("Idempotency-Key", "is of one job: give each job of a batch its guid")
        batch = _read_batch(read_body(request))
        specs = batch.parse()
        try:
            submissions = submit_jobs(
                specs=specs, bodies=batch.bodies, owner=caller_of(request), now=clock.now()
            )
        except JobsRefused as refused:
            faults = [batch.place(position, fault) for position, fault in refused.faults]
            raise InvalidSpec(faults) from None
        return answer({"results": _results(submissions), "next": None}, status=201)


class JobDetail(ApiView):
    """One job."""

    @openapi.describe("get_job", answers={200: openapi.ref("Job")}, problems=(404,))
    def get(self, request: Request, job_id: int) -> HttpResponse:
        """Show one job."""
        return answer(jobs.get_job(job_id))

    @openapi.describe(
        "delete_job",
        answers={204: None},
        parameters=[openapi.parameter("claim", "Of a one-off task's job: that of the task.")],
        problems=(400, 403, 404, 409),
    )
    def delete(self, request: Request, job_id: int) -> HttpResponse:
        """Delete a job that has ended (its submitter, or an operator): it is hidden at once.

        409: it has not ended, or it is that of a one-off task that is not RESOLVING by the claim.
        """
        claim = Parameters(request, "claim").claim()
        check_may_change(request, jobs.find_owner(job_id).owner_id, "delete")
        actor = request.user.get_username()
        delete_job(job_id=job_id, claim=claim, actor=actor, now=clock.now())
        return HttpResponse(status=204)


class JobTasks(ApiView):
    """The tasks of a job."""

    @openapi.describe(
        "list_tasks_of_job",
        answers={200: openapi.page_of("Task")},
        parameters=[
            openapi.parameter("state", "States by name, separated by commas."),
            *openapi.PAGING,
        ],
        problems=(400, 404),
    )
    def get(self, request: Request, job_id: int) -> HttpResponse:
        """List the tasks of a job, by group and index."""
        parameters = Parameters(request, "state", *PAGING)
        page = PageRequest(request, parameters)
        found = tasks.list_tasks(
            job_id,
            states=parameters.states(),
            after=page.number,
            limit=page.limit + 1,
            now=clock.now(),
        )
        return page.answer(found, lambda task: task["id"])


class JobCancel(ApiView):
    """Cancel a job."""

    @openapi.describe(
        "cancel_job",
        body="CancelRequest",
        answers={202: openapi.ref("Job")},
        problems=(400, 403, 404, 413, 415, 422),
    )
    def post(self, request: Request, job_id: int) -> HttpResponse:
        """Cancel a job (its submitter, or an operator). A job that has ended stays as it is.

        With `force` containers are killed at once, also those whose stop is under way, and those of
        a job that was deleted meanwhile.
        """
        asked = read_part(request, CancelRequest)
        owned = jobs.find_owner(job_id, though_stopping=asked.force)
        check_may_change(request, owned.owner_id)
        cancel_job(
            job_id=job_id,
            reason=asked.reason,
            force=asked.force,
            actor=request.user.get_username(),
            now=clock.now(),
        )
        return answer(jobs.get_job(job_id, though_deleted=asked.force), status=202)


class JobRetry(ApiView):
    """Retry a job."""

    @openapi.describe(
        "retry_job",
        body="EmptyRequest",
        answers={201: openapi.ref("Job"), 200: openapi.ref("Job")},
        problems=(400, 403, 404, 409, 413, 415, 422),
    )
    def post(self, request: Request, job_id: int) -> HttpResponse:
        """Make a new job of the tasks that did not succeed (its submitter, or an operator).

        200 if the same `Idempotency-Key`, which becomes its guid, made it already.
        """
        owned = jobs.find_owner(job_id)
        read_part(request, EmptyRequest)
        check_may_change(request, owned.owner_id, "retry")
        submission = retry_job(
            job_id=job_id,
            guid=_read_key(request),
            actor=request.user.get_username(),
            now=clock.now(),
        )
        return _answer_submission(request, submission, jobs.get_job(submission.job_id))


@dataclass(frozen=True, slots=True)
class _BatchBody:
    """The jobs of a batch, and what the paths of their fields begin with."""

    bodies: Sequence[Any]
    prefix: str

    def parse(self) -> list[JobSpec]:
        """The jobs. Raises InvalidSpec with the faults of all of them."""
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
        """`fault` of the job at `position`, its path as it is in the batch."""
        path = f"{self.prefix}[{position}]" + (f".{fault.field}" if fault.field else "")
        return Fault(path, fault.detail)


def _read_batch(document: Any) -> _BatchBody:
    if isinstance(document, list):
        bodies, prefix = document, ""
    elif isinstance(document, dict) and document.keys() == {"jobs"}:
        bodies, prefix = document["jobs"], "jobs"
    else:
        raise InvalidSpec([Fault("", 'a batch is a list of jobs, or {"jobs": [...]}')])
    if not isinstance(bodies, list):
        raise InvalidSpec([Fault(prefix, "must be a list of jobs")])
    if not 1 <= len(bodies) <= MAX_BATCH:
        text = f"a batch has from 1 to {MAX_BATCH} jobs, not {len(bodies)}"
        raise InvalidSpec([Fault(prefix, text)])
    return _BatchBody(bodies, prefix)


def _results(submissions: Sequence[Submission]) -> list[dict[str, Any]]:
    found = jobs.load_jobs([submission.job_id for submission in submissions])
    return [
        {**job, "created": submission.created}
        for job, submission in zip(found, submissions, strict=True)
    ]


def _answer_submission(
    request: Request, submission: Submission, document: dict[str, Any]
) -> HttpResponse:
    made = answer(document, status=201 if submission.created else 200)
    made["Location"] = request.build_absolute_uri(f"/api/v1/jobs/{submission.job_id}")
    return made


def _with_key(spec: JobSpec, key: str | None) -> JobSpec:
    """Return `spec` with the guid of the header, which is equivalent to the field."""
    if key is None:
        return spec
    if spec.guid not in (None, key):
        raise BadQuery("Idempotency-Key", "is not the guid of the job")
    return spec.model_copy(update={"guid": key})


def _read_key(request: Request) -> str | None:
    key: str | None = request.headers.get("Idempotency-Key")
    if key is not None and not is_guid(key):
        raise BadQuery("Idempotency-Key", "must be what a guid may be")
    return key
