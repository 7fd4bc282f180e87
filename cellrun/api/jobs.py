"""Call the API about jobs: submit, read, change and wait."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from cellrun.api.paths import batched, path_to
from cellrun.api.polling import PollInterval, beats
from cellrun.api.transport import ApiTransport
from cellrun.documents import Job, QueueEntry
from cellrun.states import TERMINAL_STATES


class JobCalls(ApiTransport):
    """The calls about jobs. Every method may raise Unreachable or ApiError."""

    def submit(self, spec: Mapping[str, Any]) -> Job:
        """Submit a job. A repeated submission with the same guid returns the same job."""
        return self._call("POST", "/jobs", body=spec)

    def submit_all(self, specs: Sequence[Mapping[str, Any]]) -> list[Job]:
        """Submit up to 1,000 jobs: all of them or none. With guids, as `submit`."""
        return self._call("POST", "/jobs:batch", body={"jobs": list(specs)})["results"]

    def dry_run(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Return where a job would be placed now, and why tasks would wait. Change nothing."""
        return self._call("POST", "/jobs:dry-run", body=spec)

    def jobs(self, *, limit: int = 50, **filters: str | None) -> Iterator[Job]:
        """Yield the newest `limit` jobs; filters: id, name, guid, owner, state, project, pool,
        label, since; `fields` selects fields.
        """
        return self._pages("/jobs", filters, limit)

    def jobs_by_id(self, job_ids: Collection[int], *, fields: str | None = None) -> Iterator[Job]:
        """Yield any number of jobs, newest first, without those that the token may not read.

        `fields`: names, separated by commas; the documents then have only these.
        """
        for part in batched(job_ids):
            yield from self._pages("/jobs", {"id": part, "fields": fields})

    def job(self, job_id: int) -> Job:
        """Return one job."""
        return self._call("GET", f"/jobs/{job_id}")

    def cancel_job(self, job_id: int, *, reason: str = "", force: bool = False) -> Job | None:
        """Cancel a job. `force`: kill its containers at once, without a grace period."""
        return self._call("POST", f"/jobs/{job_id}/cancel", body={"reason": reason, "force": force})

    def hold_job(self, job_id: int, *, reason: str) -> Job:
        """Place no waiting task of a job until its release; running tasks continue."""
        return self._call("POST", f"/jobs/{job_id}/hold", body={"reason": reason})

    def release_job(self, job_id: int, *, reason: str = "") -> Job:
        """Release a job from its hold."""
        return self._call("POST", f"/jobs/{job_id}/release", body={"reason": reason})

    def move_job(
        self,
        job_id: int,
        *,
        to: Literal["front", "end"] | None = None,
        band: str | None = None,
        reason: str = "",
    ) -> Job:
        """Move a job to the front or the end of its band, or to another band."""
        body = {"to": to, "band": band, "reason": reason}
        return self._call("POST", f"/jobs/{job_id}/move", body=body)

    def queue(self, pool: str, *, limit: int = 50) -> Iterator[QueueEntry]:
        """Yield the first groups in the queue of a pool, in the order of the next pass."""
        return self._pages(path_to("pools", pool, "queue"), {}, limit)

    def retry_job(self, job_id: int, *, key: str | None = None) -> Job:
        """Create a job of the tasks that did not succeed. The same key returns the same job."""
        return self._call("POST", f"/jobs/{job_id}/retry", key=key)

    def delete_job(self, job_id: int) -> None:
        """Delete a job that has ended with its tasks, history and output. Cannot be undone."""
        self._call("DELETE", f"/jobs/{job_id}")

    def wait(
        self,
        job_id: int,
        *,
        deadline_seconds: float | None = None,
        on_change: Callable[[Job], None] | None = None,
    ) -> Job:
        """Poll until the job is terminal and return it. Raise StillOpen after `deadline_seconds`.

        Poll again while the server is unavailable for a short time.
        """
        pace = PollInterval(deadline_seconds)
        previous: Job | None = None
        for _ in beats(pace, f"job {job_id}"):
            job = self.patiently(lambda: self.job(job_id), pace)
            if job != previous:
                pace.reset()
                if on_change is not None:
                    on_change(job)
            previous = job
            if job["state"] in TERMINAL_STATES:
                return job
        raise AssertionError("beats never end")
