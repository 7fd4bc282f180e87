"""Tasks of type `http-job`: each is one job of the HTTP service that JOB_SERVICE names.

The service understands three requests under a key that the caller chooses:

    PUT    /jobs/KEY   {"command": [...]}    begins the job; the same again changes nothing
    GET    /jobs/KEY   -> {"state": "queued" | "running" | "done" | "failed" | "cancelled",
                           "lines": [...], "result": ..., "message": ...}
    DELETE /jobs/KEY   cancels it; 404: there is none
"""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from workers.runners.interface import (
    AbortResult,
    Context,
    FailureOrigin,
    RunnerObservation,
    RunnerPhase,
)

# Well below the time that a call of a runner may take.
HTTP_SECONDS = 10.0
POLL_SECONDS = 1.0
PHASES = {"queued": RunnerPhase.QUEUED, "running": RunnerPhase.RUNNING}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follow no redirect, so that no other server receives the token: raise HTTPError."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


class HttpJob:
    """The runner. Its state: `key`, the job's name at the service; `copied`, the lines so far."""

    def reconcile(self, context: Context) -> RunnerObservation:
        """Do one step: choose a key; begin the job; then poll its state."""
        if "JOB_SERVICE" not in context.task.env:
            return RunnerObservation(
                RunnerPhase.FAILED, message="the variable JOB_SERVICE names no service"
            )
        key = context.state.get("key")
        if key is None:
            # Not one request has been made. The key is safe on disk before the first is, so that
            # the next process requests this job, and begins no second one.
            state = {"key": context.task.uid, "copied": 0}
            return RunnerObservation(RunnerPhase.QUEUED, state, poll_seconds=0)
        job = send_request(context, "GET")
        if job is None:
            job = send_request(context, "PUT", {"command": list(context.task.command)})
            context.log.out(f"job {key} was submitted")
        return self._judge(context, job or {})

    def abort(self, context: Context) -> AbortResult:
        """Cancel the job until the service reports its end; a next attempt begins another."""
        if context.state.get("key") is None:
            return AbortResult(is_done=True)
        job = send_request(context, "DELETE")
        is_over = job is None or job.get("state") not in PHASES
        return AbortResult(is_done=is_over, state={} if is_over else None)

    def _judge(self, context: Context, job: Mapping[str, Any]) -> RunnerObservation:
        lines = [str(line) for line in job.get("lines", [])]
        for line in lines[context.state["copied"] :]:
            context.log.out(line)
        state = {**context.state, "copied": len(lines)}
        match job.get("state"):
            case "done":
                return RunnerObservation(
                    RunnerPhase.SUCCEEDED, state, result=str(job.get("result", ""))
                )
            case "failed":
                message = str(job.get("message", "the job failed"))
                return RunnerObservation(
                    RunnerPhase.RETRYABLE_FAILURE, state, message=message, reason="job_failed"
                )
            case "cancelled":
                return RunnerObservation(
                    RunnerPhase.RETRYABLE_FAILURE,
                    {},
                    message="the job was cancelled at the service",
                    reason="job_cancelled",
                    fault=FailureOrigin.SYSTEM,
                )
            case word:
                phase = PHASES.get(str(word), RunnerPhase.INITIALIZING)
                return RunnerObservation(phase, state, words=str(word), poll_seconds=POLL_SECONDS)


def send_request(
    context: Context, method: str, body: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """The service's answer about the attempt's job; None: it knows of none.

    Raises OSError when it does not answer: the cell calls the runner again after a pause.
    """
    address = f"{context.task.env['JOB_SERVICE'].rstrip('/')}/jobs/{context.state['key']}"
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, content, method=method)
    request.add_header("Content-Type", "application/json")
    if "job-service-token" in context.secrets:
        token = context.secrets["job-service-token"].decode()
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with _OPENER.open(request, timeout=HTTP_SECONDS) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise
