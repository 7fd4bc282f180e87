"""A recount says what differs from what follows, and nothing else."""

from dataclasses import replace
from datetime import UTC, datetime

from controlplane.contract.states import TaskState as S
from controlplane.domain.integrity.recount import TaskCounts, find_differences
from controlplane.domain.state.facts import GroupFacts
from controlplane.domain.state.job_rollup import GroupRow, JobRow

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
JOB = JobRow(7, S.RUNNING, 2, False, 0, started_at=NOW)


def a_group(counts: dict[S, int], excused: int = 0) -> GroupRow:
    facts = GroupFacts(
        group_id=12, name="main", counts=counts, min_available=2, depends_on=(), startable_at=NOW
    )
    return GroupRow(facts, killed_by_dependency=excused)


def texts(job: JobRow, said: GroupRow, counts: dict[S, int], excused: int = 0) -> list[str]:
    counted = {12: TaskCounts(counts, excused)}
    return [item.text for item in find_differences(job, [said], counted, now=NOW)]


def test_what_is_as_it_must_be_differs_in_nothing() -> None:
    counts = {S.RUNNING: 1, S.PENDING: 1}
    assert texts(JOB, a_group(counts | {S.FAILED: 0}), counts) == []


def test_wrong_counts_are_told_with_what_is_so() -> None:
    assert texts(JOB, a_group({S.RUNNING: 2}), {S.RUNNING: 1, S.PENDING: 1}) == [
        "group 12 (main): counts 2 RUNNING, its tasks are 1 PENDING, 1 RUNNING"
    ]
    assert texts(JOB, a_group({}), {S.RUNNING: 2}) == [
        "group 12 (main): counts none, its tasks are 2 RUNNING"
    ]


def test_wrong_counts_can_be_mended_whatever_became_of_the_job() -> None:
    for state in (S.RUNNING, S.SUCCEEDED):
        counted = {12: TaskCounts({S.SUCCEEDED: 2})}
        said = a_group({S.SUCCEEDED: 1, S.PENDING: 1})
        first, *_ = find_differences(replace(JOB, state=state), [said], counted, now=NOW)
        assert (first.job_id, first.group_id, first.is_mendable) == (7, 12, True)


def test_who_is_excused_decides_how_the_job_ended() -> None:
    ended = replace(JOB, state=S.KILLED, finished_at=NOW)
    counts = {S.KILLED: 1, S.SUCCEEDED: 1}
    assert texts(ended, a_group(counts), counts) == []
    assert texts(ended, a_group(counts), counts, excused=1) == [
        "group 12 (main): killed_by_dependency is 0, a dependency killed 1",
        "job 7: is KILLED, FAILED follows from its tasks",
    ]


def test_a_job_that_must_end_by_the_states_of_its_tasks_is_told() -> None:
    right = {S.FAILED: 1, S.RUNNING: 1}
    assert texts(JOB, a_group({S.RUNNING: 2}), right)[1:] == [
        "job 7: is not ending, FAILED follows from its tasks"
    ]
    ending = replace(JOB, ending_as=S.KILLED)
    assert texts(ending, a_group(right), right) == []


def test_all_tasks_have_ended_but_the_job_has_not() -> None:
    counts = {S.SUCCEEDED: 2}
    (found,) = find_differences(JOB, [a_group(counts)], {12: TaskCounts(counts)}, now=NOW)
    assert found.text == "job 7: is RUNNING, SUCCEEDED follows from its tasks"
    assert (found.group_id, found.is_mendable) == (None, True)


def test_an_end_is_final_even_if_it_does_not_follow() -> None:
    ended = replace(JOB, state=S.SUCCEEDED, finished_at=NOW)
    for counts, follows in (
        ({S.SUCCEEDED: 1, S.FAILED: 1}, "FAILED"),
        ({S.SUCCEEDED: 1, S.RUNNING: 1}, "RUNNING"),
    ):
        (found,) = find_differences(ended, [a_group(counts)], {12: TaskCounts(counts)}, now=NOW)
        assert found.text == f"job 7: is SUCCEEDED, {follows} follows from its tasks"
        assert not found.is_mendable


def test_an_end_that_was_given_is_as_it_must_be() -> None:
    counts = {S.KILLED: 1, S.FAILED: 1}
    ended = replace(JOB, state=S.KILLED, ending_as=S.KILLED, finished_at=NOW)
    assert texts(ended, a_group(counts), counts) == []


def test_a_job_that_ends_before_it_began_is_as_it_must_be() -> None:
    counts = {S.PENDING: 1, S.KILLED: 1}
    ending = replace(JOB, state=S.PENDING, started_at=None, ending_as=S.KILLED)
    assert texts(ending, a_group(counts), counts) == []


def test_a_job_that_ran_once_stays_running_while_all_wait_again() -> None:
    counts = {S.PENDING: 2}
    assert texts(JOB, a_group(counts), counts) == []
    never = replace(JOB, state=S.PENDING, started_at=None)
    assert texts(never, a_group(counts), counts) == []
    assert texts(replace(never, started_at=NOW), a_group(counts), counts) == [
        "job 7: is PENDING, RUNNING follows from its tasks"
    ]
