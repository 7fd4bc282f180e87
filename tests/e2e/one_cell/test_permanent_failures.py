"""A task that cannot succeed takes one attempt, whatever its failure budget is."""

from typing import Any

import pytest

from cellrun import Session
from tests.e2e.work import attempts_of, run_to_end, shell_job

pytestmark = [pytest.mark.stack, pytest.mark.engine, pytest.mark.xdist_group("one cell")]

# What is wrong with the task, and how the reason of its end begins.
MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no such image": (
        {"image": "cellrun/demo:no-such-tag", "pull_policy": "never"},
        "pull: cellrun/demo:no-such-tag is not on the engine",
    ),
    "no such user": ({"user": "nobody-here"}, "start: "),
    "no such command": ({"command": ["no-such-program"]}, "start: "),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_permanent_failure_ends_the_task_at_its_first_attempt(
    session: Session, mistake: str
) -> None:
    wrong, reason = MISTAKES[mistake]
    spec = {**shell_job("true"), "retries": {"failure": 5}, **wrong}
    job, task = run_to_end(session, spec)
    assert (job["state"], task["state"]) == ("FAILED", "FAILED")
    assert str(task["failure_reason"]).startswith(reason)
    [attempts] = attempts_of(session, job["id"]).values()
    assert [attempt["number"] for attempt in attempts] == [1]
    assert session.task(task["id"])["failure_count"] == 1


def test_job_may_enable_retries_of_permanent_failures(session: Session) -> None:
    spec = shell_job("true", user="nobody-here", retries={"failure": 1}, retry_permanent=True)
    job, _ = run_to_end(session, spec)
    [attempts] = attempts_of(session, job["id"]).values()
    assert [attempt["number"] for attempt in attempts] == [1, 2]
