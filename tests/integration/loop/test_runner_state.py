"""What a runner wants kept goes with its attempt, and to the next one unless the task failed."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from controlplane import clock
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import FailureKind
from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, CellLease, Task
from controlplane.queries.attempts.launch_context import load_launch_context
from tests.integration.loop.conftest import FakeCell, Loop


@pytest.fixture
def cell(loop: Loop) -> FakeCell:
    return loop.cell()


def report_state(cell: FakeCell, attempt: Attempt, state: S = S.RUNNING, **facts: object) -> None:
    report = AttemptReport(str(attempt.uid), 0, state, gone=state is not S.RUNNING, **facts)  # type: ignore[arg-type]
    cell.report(report)


def next_attempt(loop: Loop, number: int) -> Attempt:
    Task.objects.update(not_before=None, avoid_cell_ids=None)
    loop.place()
    return Attempt.objects.get(number=number)


def test_newest_reported_runner_state_is_stored_with_the_attempt(
    loop: Loop, cell: FakeCell
) -> None:
    loop.submit()
    attempt = next_attempt(loop, 1)
    report_state(cell, attempt, plugin_phase="queued there", plugin_state={"key": "a"})
    report_state(cell, attempt, plugin_phase="halfway", plugin_state={"key": "a", "part": 2})
    attempt.refresh_from_db()
    assert attempt.details == {
        "plugin_phase": "halfway",
        "plugin_state": {"key": "a", "part": 2},
    }
    assert load_launch_context(attempt.uid).plugin_state is None


@pytest.mark.parametrize(
    ("state", "facts", "carried"),
    [
        (S.FAILED, {"failure_kind": FailureKind.SYSTEM}, {"key": "a"}),
        (S.FAILED, {"failure_kind": FailureKind.OUTSIDE}, {"key": "a"}),
        (S.PREEMPTED, {}, {"key": "a"}),
        (S.FAILED, {"failure_kind": FailureKind.USER, "reason": "runner"}, None),
    ],
)
def test_next_attempt_gets_the_state_unless_the_task_failed(
    loop: Loop, cell: FakeCell, state: S, facts: dict[str, object], carried: object
) -> None:
    loop.submit(retries={"failure": 1})
    first = next_attempt(loop, 1)
    report_state(cell, first, plugin_phase="running", plugin_state={"key": "a"})
    report_state(cell, first, state, plugin_phase="running", plugin_state={"key": "a"}, **facts)
    assert load_launch_context(next_attempt(loop, 2).uid).plugin_state == carried


def test_next_attempt_gets_the_state_reported_by_a_lost_cell(loop: Loop, cell: FakeCell) -> None:
    loop.submit()
    first = next_attempt(loop, 1)
    report_state(cell, first, plugin_phase="running", plugin_state={"key": "a"})
    over = clock.now() - timedelta(seconds=1)
    CellLease.objects.update(expires_at=over, last_message_at=over, silent_ticks=3)
    loop.converge()
    loop.cell("cell-2")
    assert load_launch_context(next_attempt(loop, 2).uid).plugin_state == {"key": "a"}


def end_refused(loop: Loop, cell: FakeCell, attempt: Attempt) -> None:
    cell.end(attempt, S.WORKER_FAILED, failure_kind=FailureKind.OUTSIDE, reason="refused")


def end_expired(loop: Loop, cell: FakeCell, attempt: Attempt) -> None:
    Attempt.objects.filter(pk=attempt.pk).update(start_before=clock.now())
    loop.converge()
    cell.end(attempt, S.KILLED, reason="stopped")


def end_drained(loop: Loop, cell: FakeCell, attempt: Attempt) -> None:
    cell.end(attempt, S.PREEMPTED, reason="stopped")


def end_before_a_call(loop: Loop, cell: FakeCell, attempt: Attempt) -> None:
    cell.end(attempt, S.FAILED, failure_kind=FailureKind.SYSTEM, reason="engine")


BARREN = (end_refused, end_expired, end_drained, end_before_a_call)
FAILURES: tuple[dict[str, object], ...] = (
    {"failure_kind": FailureKind.USER, "reason": "runner"},
    {"exit_code": 1},
)


@pytest.mark.parametrize("endings", [(end,) for end in BARREN] + [BARREN])
def test_attempts_without_a_state_report_do_not_lose_the_state(
    loop: Loop, cell: FakeCell, endings: tuple[Callable[[Loop, FakeCell, Attempt], None], ...]
) -> None:
    loop.submit()
    first = next_attempt(loop, 1)
    report_state(cell, first, plugin_phase="running", plugin_state={"key": "a"})
    report_state(cell, first, S.PREEMPTED)
    for number, end in enumerate(endings, 2):
        end(loop, cell, next_attempt(loop, number))
    last = next_attempt(loop, len(endings) + 2)
    assert load_launch_context(last.uid).plugin_state == {"key": "a"}


@pytest.mark.parametrize("newest", [{"key": "b"}, {}])
def test_next_attempt_gets_the_newest_state(
    loop: Loop, cell: FakeCell, newest: dict[str, str]
) -> None:
    loop.submit()
    for number, state in enumerate([{"key": "a"}, newest], 1):
        attempt = next_attempt(loop, number)
        report_state(cell, attempt, plugin_phase="running", plugin_state=state)
        report_state(cell, attempt, S.PREEMPTED)
    end_refused(loop, cell, next_attempt(loop, 3))
    assert load_launch_context(next_attempt(loop, 4).uid).plugin_state == newest


@pytest.mark.parametrize("facts", FAILURES)
@pytest.mark.parametrize("end", BARREN)
def test_task_failure_clears_the_state_for_all_later_attempts(
    loop: Loop,
    cell: FakeCell,
    end: Callable[[Loop, FakeCell, Attempt], None],
    facts: dict[str, object],
) -> None:
    loop.submit(retries={"failure": 1})
    first = next_attempt(loop, 1)
    report_state(cell, first, plugin_phase="running", plugin_state={"key": "a"})
    report_state(cell, first, S.PREEMPTED)
    cell.end(next_attempt(loop, 2), S.FAILED, **facts)
    end(loop, cell, next_attempt(loop, 3))
    assert load_launch_context(next_attempt(loop, 4).uid).plugin_state is None


def test_failed_service_restarts_without_its_earlier_state(loop: Loop, cell: FakeCell) -> None:
    loop.submit(kind="inference", health_check={"command": ["true"]})
    first = next_attempt(loop, 1)
    report_state(cell, first, plugin_phase="running", plugin_state={"key": "a"})
    report_state(cell, first, S.FAILED, failure_kind=FailureKind.USER, reason="runner")
    assert load_launch_context(next_attempt(loop, 2).uid).plugin_state is None
