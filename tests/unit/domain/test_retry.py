"""Back-off: doubling, capped, spread, and none where nobody is to blame."""

import pytest

from controlplane.domain.retry import CAP_SECONDS, JITTER, wait_seconds
from controlplane.domain.transitions import Counters, Wait


def test_nobody_waits_for_what_was_nobodys_fault() -> None:
    assert wait_seconds(Wait.NONE, Counters(preemption=50), task_id=1) == 0.0


@pytest.mark.parametrize(("failures", "full"), [(1, 1.0), (2, 2.0), (3, 4.0), (30, CAP_SECONDS)])
def test_failures_double_the_wait_up_to_the_cap(failures: int, full: float) -> None:
    for task_id in range(20):
        seconds = wait_seconds(Wait.FAILURE, Counters(failure=failures), task_id=task_id)
        assert full * (1 - JITTER) <= seconds <= full


def test_system_failures_start_at_five_seconds() -> None:
    seconds = wait_seconds(Wait.SYSTEM, Counters(system_row=1), task_id=0)
    assert 5.0 * (1 - JITTER) <= seconds <= 5.0


def test_tasks_that_fail_together_do_not_return_together() -> None:
    waits = {wait_seconds(Wait.FAILURE, Counters(failure=5), task_id=n) for n in range(50)}
    assert len(waits) == 50
