"""S3.5: a stop is marked, requested, forced, confirmed; only then is the task's capacity free.

Source: Backend.AI, "Session Termination Flow": "state changes are immediately reflected in the
database"; "The agent sends a SIGTERM signal to the container to attempt normal termination and
waits for the configured timeout. If the container doesn't terminate within the timeout period, a
SIGKILL signal is sent"; the occupied slots are released when all kernels are TERMINATED; "failure
of some kernels doesn't block the entire termination process".
"""

import time

import pytest

from controlplane.commands.jobs.cancel import cancel_job
from controlplane.models import Job
from tests.conformance.cable import Cable
from tests.scenarios.cells import LiveStage, RealCell

WHOLE = {"cpu": 0.1, "memory": "4Gi"}
OBEDIENT = "trap 'echo SIGTERM; exit 3' TERM; echo ready; sleep 300 & wait"
DEAF = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
TIDY = "tidy() { echo SIGTERM; until [ -e %s ]; do sleep 0.02; done; exit 0; }; trap tidy TERM;"
GRACE = 1.0


def begun(live: LiveStage, cell: RealCell, script: str, **body: object) -> Job:
    """A job whose program has set its trap."""
    job = live.run(cell, script, **body)
    attempt = live.until_runs(job)
    live.until(lambda: "ready" in cell.written(attempt))
    return job


def cancel(live: LiveStage, job: Job, *, force: bool = False) -> None:
    cancel_job(job_id=job.pk, reason="", force=force, actor="me", now=live.now())


def test_stop_is_recorded_at_once_and_frees_capacity_on_confirmation(
    live: LiveStage, cell: RealCell
) -> None:
    script = TIDY % cell.signal_file("tidied") + " echo ready; sleep 300 & wait"
    job = begun(live, cell, script, resources=WHOLE, stop_grace_seconds=300)
    following = live.run(cell, "true", resources=WHOLE)
    cancel(live, job)
    attempt = live.last(job)
    assert (live.states(job), attempt.finished_at is None) == (["KILLED"], False)
    live.until(lambda: "SIGTERM" in cell.written(attempt))
    live.converge()
    assert (live.last(job).released_at, live.job(job).settled_at) == (None, None)
    assert live.states(following) == ["PENDING"]
    cell.touch(attempt, "tidied")
    live.until_settled(job)
    ended = live.last(job)
    assert ended.release_kind == "confirmed"
    live.until_state(following, "SUCCEEDED")
    assert ended.released_at is not None
    assert live.last(following).created_at > ended.released_at
    live.check()


def test_program_gets_sigterm_and_can_exit_within_its_grace(
    live: LiveStage, cell: RealCell
) -> None:
    job = begun(live, cell, OBEDIENT, stop_grace_seconds=600)
    cancel(live, job)
    live.until_settled(job)
    attempt = live.last(job)
    assert (live.states(job), attempt.exit_code, attempt.stop_reason) == (
        ["KILLED"],
        3,
        "cancelled",
    )
    assert live.until(lambda: live.log(attempt) == "ready\nSIGTERM\n")


def test_a_program_that_ignores_sigterm_is_killed_when_its_grace_is_over(
    live: LiveStage, cell: RealCell
) -> None:
    job = begun(live, cell, DEAF, stop_grace_seconds=GRACE)
    cancelled_at = time.monotonic()
    cancel(live, job)
    live.until_settled(job)
    assert time.monotonic() - cancelled_at >= GRACE
    assert (live.states(job), live.last(job).exit_code) == (["KILLED"], 137)


def test_a_forced_stop_kills_at_once_even_after_a_stop_with_grace(
    live: LiveStage, cell: RealCell
) -> None:
    jobs = [begun(live, cell, DEAF, stop_grace_seconds=600) for _ in range(2)]
    cancel(live, jobs[0])
    for _ in range(10):
        cell.step()
    assert live.last(jobs[0]).released_at is None
    for job in jobs:
        cancel(live, job, force=True)
        live.until_settled(job)
        assert (live.states(job), live.last(job).exit_code) == (["KILLED"], 137)


def test_slow_stop_does_not_delay_other_stops(live: LiveStage, cell: RealCell) -> None:
    slow = begun(live, cell, DEAF, stop_grace_seconds=600)
    quick = begun(live, cell, OBEDIENT, stop_grace_seconds=600)
    for job in (slow, quick):
        cancel(live, job)
    live.until_settled(quick)
    assert (live.states(slow), live.last(slow).released_at) == (["KILLED"], None)


@pytest.mark.engine
def test_stop_unanswered_by_the_engine_does_not_delay_other_stops(
    line: Cable, live: LiveStage, docker_cell: RealCell
) -> None:
    stuck = begun(live, docker_cell, DEAF)
    others = [begun(live, docker_cell, OBEDIENT) for _ in range(2)]
    container = live.last(stuck).container_id
    assert container
    line.hold(f"/{container}/kill".encode())
    for job in (stuck, *others):
        cancel(live, job, force=job is stuck)
    for job in others:
        live.until_settled(job)
    assert (live.states(stuck), live.last(stuck).released_at) == (["KILLED"], None)
    line.hold(None)
    live.until_settled(stuck)


def test_lost_stop_order_is_sent_again_until_confirmed(live: LiveStage, cell: RealCell) -> None:
    job = begun(live, cell, OBEDIENT)
    cell.is_cut_off = True
    cancel(live, job)
    cell.step()
    cell.is_cut_off = False
    assert live.last(job).released_at is None
    live.until(lambda: live.job(job).settled_at, seconds=30)
    assert live.log(live.last(job)) == "ready\nSIGTERM\n"


def test_task_cancelled_before_its_start_never_runs(live: LiveStage, cell: RealCell) -> None:
    job = live.run(cell, "echo ready; sleep 300")
    live.place()
    assert live.states(job) == ["ASSIGNED"]
    cancel(live, job)
    live.until_settled(job)
    attempt = live.last(job)
    assert (live.states(job), attempt.started_at, attempt.exit_code) == (["KILLED"], None, None)
    assert attempt.release_kind == "confirmed"
    assert live.log(attempt) == ""
    assert "RUNNING" not in [state for state, _, _ in live.history(job)]
