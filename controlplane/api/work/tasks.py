"""Endpoints of tasks: list, show, explain, cancel; create, claim and delete one-off tasks."""

from functools import partial

from django.http.response import HttpResponseBase
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import clock
from controlplane.api import charges, schemas
from controlplane.api.base import ApiView, caller_of, check_may_change
from controlplane.api.openapi import Operation, parameter
from controlplane.api.requests import Parameters, read_body, read_part
from controlplane.api.stored_files import stored_file
from controlplane.api.work.history import MERGED, answer_history
from controlplane.commands.jobs.cancel import cancel_task
from controlplane.commands.jobs.one_offs import claim_task, delete_resolved_task, desire_task
from controlplane.queries.jobs.one_offs import find_task_id
from controlplane.queries.views import artifacts, attempts, history, tasks
from controlplane.queries.views.explain import explain_task
from controlplane.spec.one_off import OneOffRequest, parse_one_off


class Tasks(ApiView):
    """Tasks, by id or guid."""

    document = schemas.Task
    lookup_field = "task"
    lookup_value_converter = "task"

    @Operation(id="desire_task", body=OneOffRequest, codes=(201,), problems=(409, 503))
    def create(self, request: Request) -> Response:
        """Create a one-off task. 409 if a task with the guid exists, even with the same body."""
        Parameters(request)
        body = read_body(request)
        wanted = parse_one_off(body)
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
        ],
    )
    def list(self, request: Request) -> Response:
        """List tasks of all jobs, newest first."""
        wanted = tasks.TaskFilter(
            domain=self.query.text("domain"),
            cell=self.query.text("cell"),
            states=self.query.states(),
            lifecycles=self.query.lifecycles(),
        )
        return self.answer_page(partial(tasks.find_tasks, wanted, now=clock.now()), "id")

    def retrieve(self, request: Request, task: int | str) -> Response:
        """Show one task by id or guid."""
        return self._answer(find_task_id(task))

    @Operation(
        parameters=[parameter("claim", "The claim by which the task is RESOLVING.")],
        problems=(409,),
    )
    def destroy(self, request: Request, task: int | str) -> Response:
        """Delete a one-off task that is RESOLVING (its submitter, or an operator).

        Its guid can be used again at once. 409: it is not RESOLVING, or by another claim.
        """
        claim = self.query.claim()
        task_id = find_task_id(task)
        check_may_change(request, tasks.find_task_owner(task_id), "delete")
        delete_resolved_task(
            task_id=task_id, claim=claim, actor=self.actor, why="resolved", now=clock.now()
        )
        return Response(status=204)

    @Operation(body=schemas.EmptyRequest, answer=schemas.Claim, problems=(409,))
    @action(detail=True, methods=["post"], url_path="resolving")
    def resolve_task(self, request: Request, task: int | str) -> Response:
        """Claim a completed one-off task for 30 s (its submitter, or an operator).

        Of concurrent requests, one gets the claim. 409: the task has not completed, another client
        has claimed it, or it is not a one-off task.
        """
        task_id = find_task_id(task)
        owner_id = tasks.find_task_owner(task_id)
        read_part(request, schemas.EmptyRequest)
        check_may_change(request, owner_id, "resolve")
        claim = claim_task(task_id=task_id, by=self.actor, now=clock.now())
        return self.answer({"claim": claim})

    @Operation(page=True, answer=schemas.Attempt)
    @action(detail=True, url_path="attempts")
    def list_attempts_of_task(self, request: Request, task: int | str) -> Response:
        """List the attempts of a task, newest first."""
        return self.answer_page(
            lambda **page: attempts.list_attempts(find_task_id(task), **page), "number"
        )

    @Operation(page=True, answer=schemas.Change, parameters=MERGED)
    @action(detail=True, url_path="history")
    def list_history_of_task(self, request: Request, task: int | str) -> Response:
        """List the changes of a task and its attempts, newest first."""
        return answer_history(
            self, lambda **page: history.find_task_history(find_task_id(task), **page)
        )

    @Operation(answer=schemas.Artifacts, problems=(400,))
    @action(detail=True, url_path="artifacts")
    def list_artifacts_of_task(self, request: Request, task: int | str) -> Response:
        """List the artifacts of a task.

        They are those of its last attempt that succeeded, or else of its last attempt.
        """
        Parameters(request)
        found = artifacts.get_task_artifacts(find_task_id(task))["artifacts"]
        return self.answer({"results": found, "next": None})

    @Operation(answer="application/octet-stream", codes=(200, 206), problems=(409, 416))
    def read_artifact_of_task(
        self, request: Request, task: int | str, name: str
    ) -> HttpResponseBase:
        """Read an artifact of a task; 409 has the `uri` of one that is stored elsewhere.

        `Range` returns a part with 206; the ETag, for `If-Range`, is the SHA-256.
        """
        uid = artifacts.find_attempt_with_artifacts(find_task_id(task))
        return stored_file(request, uid, name)

    @Operation(answer=schemas.Explanation)
    @action(detail=True, url_path="explain")
    def explain_task(self, request: Request, task: int | str) -> Response:
        """Explain why a task waits, its position in the queue, or where it runs."""
        return self.answer(explain_task(find_task_id(task), now=clock.now()))

    @Operation(body=schemas.CancelRequest, codes=(202,), problems=(409,))
    @action(detail=True, methods=["post"], url_path="cancel")
    def cancel_task(self, request: Request, task: int | str) -> Response:
        """Cancel a task, which ends its job (its submitter, or an operator).

        With `force`, its container is killed at once, even if it is being stopped.
        """
        task_id = find_task_id(task)
        owner_id = tasks.find_task_owner(task_id)
        options = read_part(request, schemas.CancelRequest)
        check_may_change(request, owner_id)
        cancel_task(
            task_id=task_id,
            reason=options.reason,
            force=options.force,
            actor=self.actor,
            now=clock.now(),
        )
        return self._answer(task_id, status=202)

    def _answer(self, task_id: int, status: int = 200) -> Response:
        return self.answer(tasks.get_task(task_id, now=clock.now()), status)
