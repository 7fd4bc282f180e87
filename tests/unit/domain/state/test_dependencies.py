"""Dependencies between groups and between jobs: what satisfies each, and what makes it hopeless."""

from datetime import datetime

import pytest

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.dependencies import (
    DependencyStatus,
    JobMilestones,
    dependencies_of,
    group_dependency_status,
    job_dependency_status,
)
from controlplane.domain.state.facts import GroupFacts
from controlplane.domain.state.states import OPEN, TERMINAL
from tests.harness.domain.facts import NOW

MET, OPEN_YET, HOPELESS = (
    DependencyStatus.SATISFIED,
    DependencyStatus.OPEN,
    DependencyStatus.IMPOSSIBLE,
)
OK, F, K, P, R = S.SUCCEEDED, S.FAILED, S.KILLED, S.PENDING, S.RUNNING


def group(counts: dict[S, int], least: int = 2, name: str = "a", **rest: object) -> GroupFacts:
    return GroupFacts(1, name, counts, least, **rest)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({OK: 2}, MET),
        ({OK: 3}, MET),
        ({OK: 2, F: 1}, MET),
        ({OK: 2, P: 1}, OPEN_YET),
        ({OK: 1, F: 1}, HOPELESS),
        ({OK: 1, R: 1}, OPEN_YET),
        ({F: 2}, HOPELESS),
    ],
)
def test_succeeded_requires_the_minimum_and_no_open_task(
    counts: dict[S, int], expected: DependencyStatus
) -> None:
    assert group_dependency_status(group(counts), "succeeded") is expected


@pytest.mark.parametrize("state", sorted(OPEN))
def test_finished_requires_no_open_task(state: S) -> None:
    assert group_dependency_status(group({F: 2}), "finished") is MET
    assert group_dependency_status(group({F: 2, state: 1}), "finished") is OPEN_YET


@pytest.mark.parametrize(
    ("counts", "ran", "expected"),
    [
        ({R: 2}, 2, MET),
        ({R: 1, P: 1}, 2, MET),
        ({K: 2}, 2, MET),
        ({S.WORKER_FAILED: 2, F: 1}, 2, MET),
        ({OK: 2, P: 5}, 2, MET),
        ({R: 1, P: 1}, 1, OPEN_YET),
        ({S.BUILDING: 2}, 0, OPEN_YET),
        ({F: 3, P: 1}, 0, OPEN_YET),
        ({F: 2}, 0, HOPELESS),
        ({F: 1, K: 1}, 1, HOPELESS),
    ],
)
def test_started_requires_the_minimum_of_started_tasks(
    counts: dict[S, int], ran: int, expected: DependencyStatus
) -> None:
    assert group_dependency_status(group(counts, ran=ran), "started") is expected


def test_started_requires_one_task_unless_some_succeeded_before() -> None:
    assert group_dependency_status(group({P: 1}, least=0), "started") is OPEN_YET
    assert group_dependency_status(group({F: 1}, least=0), "started") is HOPELESS
    assert group_dependency_status(group({K: 1}, least=0, ran=1), "started") is MET
    assert group_dependency_status(group({P: 1}, least=0, is_rest=True), "started") is MET
    assert group_dependency_status(group({P: 1}, least=1, is_rest=True), "started") is OPEN_YET


def test_all_dependencies_must_be_met_and_one_impossible_decides() -> None:
    groups = {
        "met": group({OK: 2}),
        "open": group({R: 2}),
        "lost": group({F: 2}),
    }

    def of(*names: str) -> DependencyStatus:
        wanted = tuple((name, "succeeded") for name in names)
        return dependencies_of(group({}, name="x", depends_on=wanted), groups)

    assert of() is MET
    assert of("met") is MET
    assert of("met", "open") is OPEN_YET
    assert of("open", "lost", "met") is HOPELESS


def test_each_dependency_uses_its_own_condition() -> None:
    groups = {"a": group({F: 2}), "b": group({R: 2}, ran=2)}
    wanted = (("a", "finished"), ("b", "started"))
    assert dependencies_of(group({}, depends_on=wanted), groups) is MET


def job(
    state: S, started_at: datetime | None = None, settled_at: datetime | None = None
) -> JobMilestones:
    return JobMilestones(state, started_at, settled_at)


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_ended_job_meets_finished_and_only_success_meets_succeeded(state: S) -> None:
    assert job_dependency_status(job(state), "finished") is MET
    assert job_dependency_status(job(state), "succeeded") is (MET if state is OK else HOPELESS)


@pytest.mark.parametrize("state", [P, R])
@pytest.mark.parametrize("until", ["succeeded", "finished", "settled"])
def test_dependency_on_an_open_job_stays_open(state: S, until: str) -> None:
    assert job_dependency_status(job(state, started_at=NOW), until) is OPEN_YET


@pytest.mark.parametrize(
    ("milestones", "expected"),
    [
        (job(R, started_at=NOW), MET),
        (job(K, started_at=NOW), MET),
        (job(P), OPEN_YET),
        (job(R), OPEN_YET),
        (job(K), HOPELESS),
        (job(OK), MET),
    ],
)
def test_job_counts_as_started_once_a_task_ran(
    milestones: JobMilestones, expected: DependencyStatus
) -> None:
    assert job_dependency_status(milestones, "started") is expected


def test_settled_requires_the_settling_instant() -> None:
    assert job_dependency_status(job(F), "settled") is OPEN_YET
    assert job_dependency_status(job(F, settled_at=NOW), "settled") is MET
