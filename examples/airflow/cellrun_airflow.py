"""Run jobs of Cellrun as tasks of Airflow: an operator that waits in the triggerer."""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.triggers.base import BaseTrigger, TriggerEvent

from cellrun import JobFailed, Session, StillOpen, connect

SHOWN_TASKS = 5
SHOWN_LINES = 50


class CellrunOperator(BaseOperator):
    """Submit a job, wait for its end in the triggerer, and return the number of the job.

    `job`: a document as in docs/job-spec.md, with templates; `name` and `guid` have defaults. URL
    and token are those of the environment of worker and triggerer.
    """

    template_fields = ("job",)

    def __init__(
        self, *, job: Mapping[str, Any], poll_seconds: float = 5.0, **options: Any
    ) -> None:
        super().__init__(**options)
        self.job = job
        self.poll_seconds = poll_seconds
        self._job_id: int | None = None

    def execute(self, context: Context) -> None:
        """Submit the job, or find that of an interrupted try, and defer to the trigger."""
        with connect() as session:
            self._job_id = self._submit(session, context["ti"])
            self.log.info("job %s at %s", self._job_id, session.url)
        self.defer(
            trigger=CellrunTrigger(self._job_id, self.poll_seconds),
            method_name=self.execute_complete.__name__,
        )

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> int:
        """Return the number of a job that succeeded. Log the output of others; raise JobFailed."""
        job_id = int(event["job_id"])
        with connect() as session:
            job = session.job(job_id)
            if job["state"] == "SUCCEEDED":
                return job_id
            self._show_output(session, job_id)
        raise JobFailed(job_id, job["state"], job["failure_reason"])

    def on_kill(self) -> None:
        """Cancel the job if Airflow stops the task before it is deferred."""
        if self._job_id is not None:
            _cancel(self._job_id)

    def _submit(self, session: Session, ti: Any) -> int:
        """Return the job of this try, or of an earlier one whose worker was lost."""
        place = {"domain": "default", "project": "default"} | {
            name: self.job[name] for name in ("domain", "project") if name in self.job
        }
        # Airflow raises `max_tries` when a user clears a task, which must run again.
        first = ti.max_tries - self.retries + 1
        for number in range(ti.try_number, first - 1, -1):
            found = session.jobs(
                guid=_guid(ti, number), project="{domain}/{project}".format(**place), limit=1
            )
            for job in found:
                # The job of an earlier try that failed is the reason for this try.
                is_failed = job["finished_at"] is not None and job["state"] != "SUCCEEDED"
                if number == ti.try_number or not is_failed:
                    return job["id"]
        document = {"name": _name(ti), "labels": _labels(ti), **self.job, **place}
        return session.submit({**document, "guid": _guid(ti, ti.try_number)})["id"]

    def _show_output(self, session: Session, job_id: int) -> None:
        for task in session.tasks(job_id, state="failed", limit=SHOWN_TASKS):
            if task["attempt_uid"] is None:
                continue
            for stream in ("stdout", "stderr"):
                piece = session.log(task["attempt_uid"], stream, tail=SHOWN_LINES)
                for line in piece.content.decode("utf-8", "replace").splitlines():
                    self.log.info("%s/%s %s: %s", task["group"], task["index"], stream, line)


class CellrunTrigger(BaseTrigger):
    """Fire when a job has ended. A user that ends the deferred task cancels the job."""

    def __init__(self, job_id: int, poll_seconds: float) -> None:
        super().__init__()
        self.job_id, self.poll_seconds = job_id, poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what another triggerer needs to continue."""
        name = f"{type(self).__module__}.{type(self).__qualname__}"
        return name, {"job_id": self.job_id, "poll_seconds": self.poll_seconds}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll until the job has ended, also while the server is unavailable."""
        with connect() as session:
            while not await asyncio.to_thread(_has_ended, session, self.job_id):
                await asyncio.sleep(self.poll_seconds)
        yield TriggerEvent({"job_id": self.job_id})

    async def on_kill(self) -> None:
        """Cancel the job, since a user cleared the task or marked it as ended."""
        await asyncio.to_thread(_cancel, self.job_id)


def _has_ended(session: Session, job_id: int) -> bool:
    """Return whether the job has ended; False if the server is unavailable."""
    try:
        session.wait(job_id, deadline_seconds=0)
    except StillOpen:
        return False
    return True


def _cancel(job_id: int) -> None:
    with connect() as session:
        session.cancel_job(job_id, reason="Airflow ended the task")


def _guid(ti: Any, number: int) -> str:
    """Return the guid of a try: the words may be longer than a guid, and have other characters."""
    words = [ti.dag_id, ti.run_id, ti.task_id, ti.map_index, number]
    return "airflow/" + hashlib.sha256(json.dumps(words).encode()).hexdigest()


def _name(ti: Any) -> str:
    words = re.sub(r"[^a-z0-9._-]+", "-", f"{ti.dag_id}.{ti.task_id}".lower())
    return words.lstrip("._-")[:63] or "airflow"


def _labels(ti: Any) -> dict[str, str]:
    return {"airflow-dag": ti.dag_id, "airflow-run": ti.run_id, "airflow-task": ti.task_id}
