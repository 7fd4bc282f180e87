"""Run flows of Prefect as jobs of Cellrun: a worker that can be restarted."""

import re
import shlex
from typing import Any

import anyio
from anyio.abc import TaskStatus
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import InfrastructureNotFound
from prefect.states import Crashed
from prefect.workers.base import (
    BaseJobConfiguration,
    BaseVariables,
    BaseWorker,
    BaseWorkerResult,
)
from pydantic import Field

from cellrun import ApiError, JobFailed, Session, StillOpen, connect

OPEN_STATES = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
FLOW_RUN_LABEL = "prefect.io/flow-run-id"
MAX_LABEL = 255

Job = dict[str, Any]
"""The document of a job."""


class CellrunJobConfiguration(BaseJobConfiguration):
    """The job of a flow run. Without an image it is a plain process of a cell."""

    image: str | None = None
    job: dict[str, Any] = Field(default_factory=dict)
    poll_seconds: float = 5.0

    def document(self, guid: str) -> dict[str, Any]:
        """Return the job as Cellrun accepts it, without the values that it gets from secrets."""
        hidden = {secret.get("env") for secret in self.job.get("secrets", [])}
        name = re.sub(r"[^a-z0-9._-]+", "-", (self.name or "").lower()).lstrip("._-")
        return {
            **self.job,
            **({"image": self.image} if self.image else {"task_type": "process"}),
            "name": name[:63] or "prefect",
            "guid": guid,
            "command": shlex.split(self.command or ""),
            "env": {name: value for name, value in self.env.items() if name not in hidden},
            "labels": {name: value[:MAX_LABEL] for name, value in self.labels.items()},
        }


class CellrunVariables(BaseVariables):
    """What work pools and deployments can set."""

    image: str | None = Field(
        default=None, description="With Prefect and the flow. None: a plain process of a cell."
    )
    job: dict[str, Any] = Field(
        default_factory=dict,
        description="Other fields of a Cellrun job, such as project, pool, resources and secrets.",
    )
    poll_seconds: float = Field(default=5.0, description="Between two looks at a job.")


class CellrunWorkerResult(BaseWorkerResult):
    """The number of a job, and the exit code of its task."""


class CellrunWorker(BaseWorker[CellrunJobConfiguration, CellrunVariables, CellrunWorkerResult]):
    """Submits flow runs as jobs. URL and token are those of its environment."""

    type = "cellrun"
    job_configuration = CellrunJobConfiguration
    job_configuration_variables = CellrunVariables
    _description = "Execute flow runs as jobs of Cellrun."
    _display_name = "Cellrun"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._has_recovered = False

    async def run(
        self,
        flow_run: FlowRun,
        configuration: CellrunJobConfiguration,
        task_status: TaskStatus[Any] = anyio.TASK_STATUS_IGNORED,
    ) -> CellrunWorkerResult:
        """Submit the job of a flow run, and return when it has ended."""
        with connect() as session:
            job_id = await self._submit(session, flow_run, configuration)
            task_status.started(job_id)
            job = await _end_of(session, job_id, configuration.poll_seconds)
            return await self._result(session, flow_run, job)

    async def kill_infrastructure(
        self,
        infrastructure_pid: str,
        configuration: CellrunJobConfiguration,
        grace_seconds: int = 30,
    ) -> None:
        """Cancel a job; its field `stop_grace_seconds` has the grace period."""
        with connect() as session:
            try:
                await anyio.to_thread.run_sync(_cancel, session, int(infrastructure_pid))
            except ApiError as fault:
                if fault.status != 404:
                    raise
                raise InfrastructureNotFound(f"job {infrastructure_pid} is deleted") from None

    async def get_and_submit_flow_runs(self) -> list[FlowRun]:
        """Submit what is due; before the first time, follow what an earlier worker submitted."""
        if not self._has_recovered:
            await self._recover()
            self._has_recovered = True
        return await super().get_and_submit_flow_runs()

    async def _recover(self) -> None:
        """Follow the open flow runs of the pool, whose worker may have been this one."""
        states = FlowRunFilterState(type=FlowRunFilterStateType(any_=OPEN_STATES))
        pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[self.work_pool.name]))
        offset = 0
        while page := await self.client.read_flow_runs(
            flow_run_filter=FlowRunFilter(state=states), work_pool_filter=pool, offset=offset
        ):
            for flow_run in page:
                self._runs_task_group.start_soon(self._follow, flow_run)
            offset += len(page)

    async def _follow(self, flow_run: FlowRun) -> None:
        """Follow the job of an open flow run, and report it as crashed if the job fails."""
        logger = self.get_flow_run_logger(flow_run)
        try:
            configuration = await self.job_configuration.resolve_for_flow_run(
                flow_run,
                client=self.client,
                work_pool=self.work_pool,
                worker_name=self.name,
                worker_id=self.backend_id,
            )
            job_id: int | None
            with connect() as session:
                if flow_run.state.is_pending():
                    if self._cancelling_observer is not None:
                        self._cancelling_observer.add_in_flight_flow_run_id(flow_run.id)
                    job_id = await self._submit(session, flow_run, configuration)
                    await self.client.update_flow_run(flow_run.id, infrastructure_pid=str(job_id))
                else:
                    job_id = await anyio.to_thread.run_sync(_newest_job, session, flow_run)
                if job_id is None:
                    logger.warning("No job of Cellrun belongs to this flow run")
                    return
                logger.info("The restarted worker follows job %s", job_id)
                job = await _end_of(session, job_id, configuration.poll_seconds)
                result = await self._result(session, flow_run, job)
            state = (await self.client.read_flow_run(flow_run.id)).state
            if not result and not state.is_final():
                crash = Crashed(message=str(_failure(job)))
                await self.client.set_flow_run_state(flow_run.id, crash)
        except Exception:
            # As in the base class, one flow run does not end the worker.
            logger.exception("Lost connection to the job of the flow run")

    async def _submit(
        self, session: Session, flow_run: FlowRun, configuration: CellrunJobConfiguration
    ) -> int:
        """Return the job of this scheduling of the flow run, also one that exists already."""
        states = await self.client.read_flow_run_states(flow_run.id)
        # A flow run that is scheduled again, after a failure, is another job.
        scheduled = [state for state in states if state.type == StateType.SCHEDULED]
        number = max(scheduled, key=lambda state: state.timestamp).id if scheduled else "only"
        document = configuration.document(f"prefect/{flow_run.id}/{number}")
        return await anyio.to_thread.run_sync(_submit_once, session, document)

    async def _result(self, session: Session, flow_run: FlowRun, job: Job) -> CellrunWorkerResult:
        """Return the exit code of a job that has ended; log why it failed."""
        code: int | None = 0
        if job["state"] != "SUCCEEDED":
            self.get_flow_run_logger(flow_run).error("%s", _failure(job))
            code = await anyio.to_thread.run_sync(_exit_code, session, job["id"])
            code = code or 1  # a task that is stopped can exit with 0
        return CellrunWorkerResult(identifier=str(job["id"]), status_code=code)


async def _end_of(session: Session, job_id: int, poll_seconds: float) -> Job:
    """Return the job once it has ended, also if the server is unavailable meanwhile."""
    while (job := await anyio.to_thread.run_sync(_ended_job, session, job_id)) is None:
        await anyio.sleep(poll_seconds)
    return job


def _failure(job: Job) -> JobFailed:
    return JobFailed(job["id"], job["state"], job["failure_reason"])


def _submit_once(session: Session, document: dict[str, Any]) -> int:
    """Return the job of a guid. That of another worker has another environment: a conflict."""
    try:
        return session.submit(document)["id"]
    except ApiError as fault:
        project = f"{document.get('domain', 'default')}/{document.get('project', 'default')}"
        if fault.status == 409:
            for job in session.jobs(guid=document["guid"], project=project, limit=1):
                return job["id"]
        raise


def _newest_job(session: Session, flow_run: FlowRun) -> int | None:
    """Return the job that executes a flow run which has started."""
    label = f"{FLOW_RUN_LABEL}={flow_run.id}"
    return next((job["id"] for job in session.jobs(label=label, limit=1)), None)


def _ended_job(session: Session, job_id: int) -> Any:
    """Return a job that has ended; None for another one, or if the server is unavailable."""
    try:
        return session.wait(job_id, deadline_seconds=0)
    except StillOpen:
        return None


def _exit_code(session: Session, job_id: int) -> int | None:
    return next((task["exit_code"] for task in session.tasks(job_id, limit=1)), None)


def _cancel(session: Session, job_id: int) -> None:
    session.cancel_job(job_id, reason="Prefect ended the flow run")
