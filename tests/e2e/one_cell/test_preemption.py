"""Preemption with real processes and containers; and a pool that is edited while its stack runs."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from cellrun import Session
from cellrun.documents import Attempt
from tests.e2e.engine import EngineEvents
from tests.e2e.stack import RunningStack, wait_until
from tests.e2e.work import attempts_of, shell_job, wait_for_end, whole_log

pytestmark = [pytest.mark.stack, pytest.mark.engine, pytest.mark.xdist_group("one cell")]

# Prints that it was stopped, ends a second later, and succeeds in its second attempt.
VICTIM = (
    'trap "echo told to stop; sleep 1; exit 143" TERM; echo begun $CELLRUN_ATTEMPT_NUMBER; '
    "[ $CELLRUN_ATTEMPT_NUMBER = 1 ] && while :; do sleep 0.1; done; echo done"
)
LICENCE = {"cpu": 0.1, "memory": "16Mi", "licence": 1}


def most_of(operator: Session) -> dict[str, Any]:
    """More than half of what the one cell has: two such tasks do not fit."""
    capacity = operator.cell("cell-1")["capacity"]
    return {"cpu": round(capacity["cpu"] * 600) / 1000, "memory": "32Mi"}


def the_attempts(session: Session, job_id: int) -> list[Attempt]:
    """Those of the job's one task."""
    [attempts] = attempts_of(session, job_id).values()
    return attempts


def wait_for_running(session: Session, job_id: int) -> Attempt:
    """The newest attempt of the job's one task, once it runs."""
    wait_until(
        lambda: [attempt["state"] for attempt in the_attempts(session, job_id)][-1:] == ["RUNNING"],
        seconds=60,
        what=f"job {job_id} runs",
    )
    return the_attempts(session, job_id)[-1]


def moment(text: str | None) -> datetime:
    assert text is not None
    return datetime.fromisoformat(text)


def test_production_preempts_batch_and_batch_resumes(
    stack: RunningStack, operator: Session, session: Session
) -> None:
    room = most_of(operator)
    with EngineEvents(stack.installation) as events:
        batch = session.submit(shell_job(VICTIM, name="batch", band="batch", resources=room))["id"]
        victim = wait_for_running(session, batch)
        wait_until(
            lambda: "begun 1" in whole_log(session, victim["uid"]), seconds=30, what="it has begun"
        )
        urgent_job = shell_job(
            "echo urgent; sleep 1", name="urgent", band="production", resources=room
        )
        urgent = session.submit(urgent_job)["id"]
        assert wait_for_end(session, urgent)["state"] == "SUCCEEDED"
        assert wait_for_end(session, batch)["state"] == "SUCCEEDED"

    first, second = the_attempts(session, batch)
    [winner] = the_attempts(session, urgent)
    assert (first["state"], second["state"]) == ("PREEMPTED", "SUCCEEDED")
    assert whole_log(session, first["uid"]) == "begun 1\ntold to stop\n"
    assert whole_log(session, second["uid"]) == "begun 2\ndone\n"
    # The place is free when its container is confirmed gone, a second after the stop.
    ended, released = moment(first["finished_at"]), moment(first["released_at"])
    assert first["release_kind"] == "confirmed"
    assert ended < released <= moment(winner["created_at"])
    assert moment(winner["released_at"]) <= moment(second["created_at"])
    [task] = session.tasks(batch)
    assert task["preemption_count"] == 1  # type: ignore[typeddict-item]
    check_history(session, task["id"], urgent)
    # And the engine shows the same.
    ours = [it["cellrun.attempt"] for what, it in events.in_order() if what in ("start", "die")]
    order = [first["uid"], first["uid"], winner["uid"], winner["uid"], second["uid"]]
    assert [uid for uid in ours if uid in order][:5] == order


def check_history(session: Session, task_id: int, urgent: int) -> None:
    """Check what became of the victim, and which job it was evicted for."""
    changes = list(session.history("tasks", task_id))
    steps = [(row["to_state"], row["reason"]) for row in changes if row["to_state"]]
    assert ("PENDING", "preempted") in steps
    [why] = [row["message"] for row in changes if row["reason"] == "preempted"]
    assert why == f"made room for job {urgent} (production)"


@pytest.fixture
def pool(operator: Session) -> Iterator[str]:
    """The pool's name; it is as it was afterwards."""
    yield "default"
    operator.put_pool("default", {"tokens": {}, "preemption": True})


def test_pool_changes_take_effect_at_once(pool: str, operator: Session, session: Session) -> None:
    waiting = session.submit(
        shell_job("echo licensed", name="licensed", resources=LICENCE, allow_unsatisfiable=True)
    )["id"]

    def code() -> str:
        [task] = session.tasks(waiting)
        reason = task["pending_reason"]
        return reason["code"] if reason else ""

    wait_until(lambda: code() == "insufficient_resources", seconds=30, what="no cell has licences")
    operator.put_pool(pool, {"tokens": {"licence": 1}})
    assert wait_for_end(session, waiting)["state"] == "SUCCEEDED"

    # Without preemption batch goes on, whatever waits.
    operator.put_pool(pool, {"preemption": False})
    room = most_of(operator)
    batch_job = shell_job("echo begun; sleep 4", name="batch", band="batch", resources=room)
    batch = session.submit(batch_job)["id"]
    wait_for_running(session, batch)
    urgent = session.submit(shell_job("true", name="urgent", band="production", resources=room))
    assert wait_for_end(session, urgent["id"])["state"] == "SUCCEEDED"
    assert [attempt["state"] for attempt in the_attempts(session, batch)] == ["SUCCEEDED"]
