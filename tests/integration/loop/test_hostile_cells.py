"""A cell with a valid key that sends messages about the attempts of another cell."""

from typing import Any

import pytest

from controlplane.contract.messages.reports import AttemptReport, Heartbeat, HeldAttempt, Register
from controlplane.contract.states import FailureKind
from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, CellLease, Task
from tests.integration.loop.conftest import FakeCell, Loop


def facts() -> list[dict[str, Any]]:
    """Every column of the attempts and tasks."""
    return [*Attempt.objects.order_by("pk").values(), *Task.objects.order_by("pk").values()]


@pytest.fixture
def victim(loop: Loop) -> FakeCell:
    return loop.cell("victim")


@pytest.fixture
def attempt(loop: Loop, victim: FakeCell) -> Attempt:
    """A running attempt of `victim`, the only cell until then."""
    loop.submit()
    loop.place()
    (attempt,) = Attempt.objects.all()
    victim.report(AttemptReport(str(attempt.uid), 0, S.RUNNING))
    return Attempt.objects.get()


@pytest.fixture
def intruder(loop: Loop, attempt: Attempt) -> FakeCell:
    return loop.cell("intruder")


@pytest.mark.parametrize("state", [S.BUILDING, S.RUNNING, S.SUCCEEDED, S.FAILED, S.KILLED])
def test_report_about_an_attempt_of_another_cell_changes_nothing(
    victim: FakeCell, attempt: Attempt, intruder: FakeCell, state: S
) -> None:
    before = facts()
    uid = str(attempt.uid)
    addresses = {"http": "10.6.6.6:1"}
    output = {"name": "a", "size": 1, "sha256": "0" * 64, "uri": "s3://bucket/a"}
    more: dict[str, Any] = {"addresses": addresses, "outputs": (output,), "result": "forged"}
    intruder.report(AttemptReport(uid, 0, state, **more))
    failure = {"failure_kind": FailureKind.SYSTEM, "reason": "engine"} if state is S.FAILED else {}
    gone = state in (S.SUCCEEDED, S.FAILED, S.KILLED)
    intruder.report(AttemptReport(uid, 0, state, gone=gone, never_created=gone, **failure, **more))
    assert facts() == before
    # A report of its own cell ends it.
    victim.report(AttemptReport(uid, 0, S.SUCCEEDED, exit_code=0, gone=True))
    assert Attempt.objects.get().state == S.SUCCEEDED


def test_cell_that_claims_an_attempt_of_another_cell_does_not_get_it(
    loop: Loop, victim: FakeCell, attempt: Attempt, intruder: FakeCell
) -> None:
    before = facts()
    held = HeldAttempt(str(attempt.uid), S.RUNNING)
    beat = CellLease.objects.get(cell__name="victim").heartbeat_seq
    intruder.beat(attempt)
    intruder.incarnation = "two"
    intruder.send(
        Register(
            intruder.capacity,
            drivers=("docker",),
            task_types=("container",),
            inventory=(held,),
        ).body()
    )
    intruder.send(Heartbeat((held,)).body())
    loop.converge()
    loop.converge()
    assert facts() == before
    assert intruder.run_orders() == []
    assert CellLease.objects.get(cell__name="victim").heartbeat_seq == beat
    assert victim.stop_orders() == []
