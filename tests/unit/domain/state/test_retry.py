"""Back-off: doubling, capped, spread, and none after ends without a fault."""

from itertools import pairwise

import pytest

from controlplane.domain.state.backoff import CAP_SECONDS, JITTER, wait_seconds
from controlplane.domain.state.transitions import BackoffKind, Counters

MANY = range(1000)


def failure(failures: int, task_id: int = 1) -> float:
    return wait_seconds(BackoffKind.FAILURE, Counters(failure=failures), task_id=task_id)


def system(task_id: int = 1, **counters: int) -> float:
    return wait_seconds(BackoffKind.SYSTEM, Counters(**counters), task_id=task_id)


def test_retry_without_a_charge_has_no_wait() -> None:
    assert wait_seconds(BackoffKind.NONE, Counters(preemption=50), task_id=1) == 0.0


@pytest.mark.parametrize(("failures", "full"), [(1, 1.0), (2, 2.0), (3, 4.0), (30, 300.0)])
def test_failures_double_the_wait_up_to_the_cap(failures: int, full: float) -> None:
    waits = [failure(failures, task_id) for task_id in MANY]
    assert full * (1 - JITTER) <= min(waits) <= max(waits) <= full
    assert max(waits) > full * 0.999


def test_jitter_is_up_to_a_quarter_and_evenly_spread() -> None:
    waits = sorted(failure(1, task_id) for task_id in MANY)
    quarters = [sum(low <= wait < low + 0.0625 for wait in waits) for low in _steps(0.75, 1.0)]
    assert JITTER == 0.25
    assert [round(count / 10) for count in quarters] == [25, 25, 25, 25]


def _steps(low: float, high: float) -> list[float]:
    return [low + (high - low) * n / 4 for n in range(4)]


@pytest.mark.parametrize(("row", "full"), [(1, 5.0), (2, 10.0), (4, 40.0)])
def test_system_failures_and_refusals_start_at_five_seconds(row: int, full: float) -> None:
    for counters in ({"system_row": row}, {"refusal_row": row}):
        waits = [system(task_id, **counters) for task_id in MANY]
        assert full * (1 - JITTER) <= min(waits) <= max(waits) <= full
        assert max(waits) > full * 0.999


@pytest.mark.parametrize("counters", [{"system_row": 3, "refusal_row": 1}, {"refusal_row": 3}])
def test_longer_of_the_two_rows_sets_the_wait(counters: dict[str, int]) -> None:
    assert system(**counters) == system(system_row=3)


def test_wait_is_capped_at_five_minutes() -> None:
    assert CAP_SECONDS == 300.0
    assert failure(10) == failure(10, 1) <= 300.0
    assert max(failure(10**6, task_id) for task_id in MANY) > 299.9


def test_system_wait_without_a_charge_equals_the_first() -> None:
    assert max(system(task_id) for task_id in MANY) == pytest.approx(5.0, abs=0.01)


def test_tasks_that_fail_together_retry_at_different_times() -> None:
    waits = sorted(failure(5, n) for n in range(50))
    gaps = [later - earlier for earlier, later in pairwise(waits)]
    assert len(set(waits)) == 50
    # Nowhere two on one spot: with the golden ratio all gaps of n points are near 1/n of the range.
    assert min(gaps) > 16.0 * JITTER / 50 / 4


def test_jitter_of_a_task_differs_per_try() -> None:
    fractions = [failure(n) / 2 ** (n - 1) for n in range(1, 8)]
    assert len({round(fraction, 3) for fraction in fractions}) == 7


@pytest.mark.parametrize(
    ("task_id", "failures", "seconds"),
    [(0, 1, 0.918441), (1, 1, 0.763932), (1, 2, 1.864745), (2, 3, 3.785218)],
)
def test_wait_is_deterministic_for_task_and_count(
    task_id: int, failures: int, seconds: float
) -> None:
    # Neither the clock nor chance: what a simulation did, it does again.
    assert failure(failures, task_id) == pytest.approx(seconds, abs=1e-6)
