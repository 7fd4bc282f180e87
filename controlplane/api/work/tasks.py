"""Endpoints of tasks: list, show, explain, cancel; create, claim and delete one-off tasks."""

from collections.abc import Collection
from functools import partial

from django.http.response import HttpResponseBase
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import clock
from controlplane.api import charges, schemas
from controlplane.api.base import ApiView, caller_of, select_fields
from controlplane.api.openapi import Operation, fields_parameter, parameter
from controlplane.api.problems import BadQuery
from controlplane.api.requests import Parameters, read_body, read_part
from controlplane.api.stored_files import stored_file
from controlplane.api.walls import check_submission, check_task
from controlplane.api.work.history import MERGED, answer_history
from controlplane.commands.jobs.cancel import cancel_task
from controlplane.commands.jobs.one_offs import claim_task, delete_resolved_task, desire_task
from controlplane.domain.roles import Permission
from controlplane.queries.jobs.one_offs import find_task_id
from controlplane.queries.tenancy.foreign_jobs import hide_foreign_jobs
from controlplane.queries.views import artifacts, attempts, history, tasks
from controlplane.queries.views.explain import explain_task
from controlplane.spec.one_off import OneOffRequest, parse_one_off

MAX_IDS = 1_000


class Tasks(ApiView):
    """Tasks, by id or guid."""

    document = schemas.Task
    lookup_field = "task"
    lookup_value_converter = "task"

    @Operation(id="desire_task", body=OneOffRequest, codes=(201,), problems=(409,))
    def create(self, request: Request) -> Response:
        """Create a one-off task. 409 if a task with the guid exists, even with the same body."""
        Parameters(request)
        body = read_body(request)
        wanted = parse_one_off(body)
        check_submission(self.access, [wanted.job])
        charges.charge_jobs(request, jobs=1, tasks=1)
        task_id = desire_task(wanted=wanted, body=body, owner=caller_of(request), now=clock.now())
        made = self._answer(task_id, status=201)
        made["Location"] = request.build_absolute_uri(f"/api/v1/tasks/{wanted.guid}")
        return made

    @Operation(
        page=True,
        parameters=[
            parameter("domain", "Domain of one-off tasks, as their client named it."),
            parameter("cell", "Name of the cell of the last attempt."),
            parameter("state", "Names of states, separated by commas."),
            parameter("lifecycle", "PENDING, RUNNING, COMPLETED, RESOLVING, separated by commas."),
            parameter(
                "job",
                "Ids of jobs, separated by commas; at most 1,000. The tasks are listed by job, the"
                " newest first, and then by group and index. Only `state` can be added.",
                example="1,2,3",
            ),
            fields_parameter("job,group,index,state,failure_reason,exit_code"),
        ],
        problems=(422,),
    )
    def list(self, request: Request) -> Response:
        """List tasks of all jobs, newest first."""
        job_ids = self.query.ids("job", most=MAX_IDS)
        if job_ids is not None:
            return self._list_of_jobs(job_ids)
        wanted = tasks.TaskFilter(
            domain=self.query.text("domain"),
            cell=self.query.text("cell"),
            states=self.query.states(),
            lifecycles=self.query.lifecycles(),
            readable=self.access.readable,
        )
        found = partial(tasks.find_tasks, wanted, now=clock.now())
        return self.answer_page(self.hiding(found), "id")

    def _list_of_jobs(self, job_ids: Collection[int]) -> Response:
        for name in ("domain", "cell", "lifecycle"):
            if self.query.texts(name):
                raise BadQuery(name, "must not be set together with job")
        fields, page = self.read_fields(), self.begin_page()
        found = tasks.list_tasks_of_jobs(
            job_ids,
            readable=self.access.readable,
            states=self.query.states(),
            after=page.pair,
            limit=page.limit + 1,
            now=clock.now(),
        )
        shown = hide_foreign_jobs(found[: page.limit], self.access.readable)
        if len(found) > page.limit:
            last = found[page.limit - 1]
            page.following = f"{last['job']}:{last['id']}"
        return page.get_paginated_response(select_fields(shown, fields))

    def retrieve(self, request: Request, task: int | str) -> Response:
        """Show one task by id or guid."""
        return self._answer(self._find(task))

    @Operation(
        parameters=[parameter("claim", "The claim by which the task is RESOLVING.")],
        problems=(409,),
    )
    def destroy(self, request: Request, task: int | str) -> Response:
        """Delete a one-off task that is RESOLVING (its submitter, or a manager).

        Its guid can be used again at once. 409: it is not RESOLVING, or by another claim.
        """
        claim = self.query.claim()
        task_id = self._find(task, Permission.CHANGE, "delete")
        delete_resolved_task(
            task_id=task_id, claim=claim, actor=self.actor, why="resolved", now=clock.now()
        )
        return Response(status=204)

    @Operation(body=schemas.EmptyRequest, answer=schemas.Claim, problems=(409,))
    @action(detail=True, methods=["post"], url_path="resolving")
    def resolve_task(self, request: Request, task: int | str) -> Response:
        """Claim a completed one-off task for 30 s (its submitter, or a manager).

        Of concurrent requests, one gets the claim. 409: the task has not completed, another client
        has claimed it, or it is not a one-off task.
        """
        task_id = self._find(task, Permission.CHANGE, "resolve")
        read_part(request, schemas.EmptyRequest)
        claim = claim_task(task_id=task_id, by=self.actor, now=clock.now())
        return self.answer({"claim": claim})

    @Operation(page=True, answer=schemas.Attempt)
    @action(detail=True, url_path="attempts")
    def list_attempts_of_task(self, request: Request, task: int | str) -> Response:
        """List the attempts of a task, newest first."""
        found = partial(attempts.list_attempts, self._find(task))
        return self.answer_page(self.hiding(found), "number")

    @Operation(page=True, answer=schemas.Change, parameters=MERGED)
    @action(detail=True, url_path="history")
    def list_history_of_task(self, request: Request, task: int | str) -> Response:
        """List the changes of a task and its attempts, newest first."""
        return answer_history(self, partial(history.find_task_history, self._find(task)))

    @Operation(answer=schemas.Artifacts, problems=(400,))
    @action(detail=True, url_path="artifacts")
    def list_artifacts_of_task(self, request: Request, task: int | str) -> Response:
        """List the artifacts of a task.

        They are those of its last attempt that succeeded, or else of its last attempt.
        """
        Parameters(request)
        found = artifacts.get_task_artifacts(self._find(task))["artifacts"]
        return self.answer({"results": found, "next": None})

    @Operation(answer="application/octet-stream", codes=(200, 206), problems=(409, 416))
    def read_artifact_of_task(
        self, request: Request, task: int | str, name: str
    ) -> HttpResponseBase:
        """Read an artifact of a task; 409 has the `uri` of one that is stored elsewhere.

        `Range` returns a part with 206; the ETag, for `If-Range`, is the SHA-256.
        """
        uid = artifacts.find_attempt_with_artifacts(self._find(task))
        return stored_file(request, uid, name)

    @Operation(answer=schemas.Explanation)
    @action(detail=True, url_path="explain")
    def explain_task(self, request: Request, task: int | str) -> Response:
        """Explain why a task waits, its position in the queue, or where it runs."""
        found = explain_task(self._find(task), now=clock.now())
        return self.answer(hide_foreign_jobs(found, self.access.readable))

    @Operation(body=schemas.CancelRequest, codes=(202,), problems=(409,))
    @action(detail=True, methods=["post"], url_path="cancel")
    def cancel_task(self, request: Request, task: int | str) -> Response:
        """Cancel a task, which ends its job (its submitter, or a manager).

        With `force`, its container is killed at once, even if it is being stopped.
        """
        task_id = self._find(task, Permission.CHANGE, "cancel")
        options = read_part(request, schemas.CancelRequest)
        cancel_task(
            task_id=task_id,
            reason=options.reason,
            force=options.force,
            actor=self.actor,
            now=clock.now(),
        )
        return self._answer(task_id, status=202)

    def _find(self, task: int | str, action: Permission = Permission.READ, verb: str = "") -> int:
        """Return the id of a task. Raise NotFound; PermissionDenied as `check_task`."""
        task_id = find_task_id(task, readable=self.access.readable)
        check_task(self.access, task_id, action, verb)
        return task_id

    def _answer(self, task_id: int, status: int = 200) -> Response:
        found = tasks.get_task(task_id, now=clock.now())
        return self.answer(hide_foreign_jobs(found, self.access.readable), status)
