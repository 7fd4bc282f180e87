"""What moves of tasks mean for the counts of groups, and what else is given of their jobs."""

from dataclasses import replace
from datetime import timedelta

import pytest

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.effects import ChangeTask, EndJob
from controlplane.domain.state.facts import GroupFacts
from controlplane.domain.state.group_counts import JobContext, Move, first_starts, move_counts
from controlplane.domain.state.job_rollup import GroupRow, JobRow
from controlplane.domain.state.states import TERMINAL, Reason
from controlplane.domain.state.task_changes import ChangeCause, change_task
from controlplane.domain.state.transitions import Event
from tests.harness.domain.facts import CREATED, NOW, task

JOB = JobRow(1, S.RUNNING, 1, explicit_minimum=False, max_task_failures=0)
END = EndJob(1, S.KILLED, Reason.CANCELLED, "enough")
SECOND = timedelta(seconds=1)


def group(group_id: int, **counts: int) -> GroupRow:
    facts = GroupFacts(group_id, f"g{group_id}", {S[n]: count for n, count in counts.items()}, 1)
    return GroupRow(facts, killed_by_dependency=1)


def moved(rows: list[GroupRow], *moves: Move) -> list[tuple[dict[str, int], int]]:
    groups = {1: rows}
    move_counts(groups, moves)
    return [
        ({S(state).name: n for state, n in row.facts.counts.items()}, row.killed_by_dependency)
        for row in groups[1]
    ]


def test_move_decrements_one_state_and_increments_another() -> None:
    moves: list[Move] = [
        (1, 7, S.PENDING, S.ASSIGNED, False),
        (1, 7, S.PENDING, S.ASSIGNED, False),
        (1, 7, S.ASSIGNED, S.RUNNING, False),
    ]
    assert moved([group(7, PENDING=3)], *moves) == [
        ({"PENDING": 1, "ASSIGNED": 1, "RUNNING": 1}, 1)
    ]


def test_only_groups_with_moves_change() -> None:
    rows = [group(7, RUNNING=1), group(8, RUNNING=1)]
    found = moved(rows, (1, 8, S.RUNNING, S.FAILED, False))
    assert found == [({"RUNNING": 1}, 1), ({"RUNNING": 0, "FAILED": 1}, 1)]


def test_tasks_killed_by_a_dependency_are_counted_separately() -> None:
    rows = [group(7, PENDING=2), group(8, PENDING=1)]
    moves: list[Move] = [
        (1, 7, S.PENDING, S.KILLED, True),
        (1, 7, S.PENDING, S.KILLED, True),
        (1, 8, S.PENDING, S.KILLED, False),
    ]
    assert [excused for _, excused in moved(rows, *moves)] == [3, 1]


def test_move_within_a_state_changes_no_count() -> None:
    rows = [group(7, RUNNING=1)]
    assert moved(list(rows), (1, 7, S.RUNNING, S.RUNNING, False)) == [({"RUNNING": 1}, 1)]
    assert moved(list(rows)) == [({"RUNNING": 1}, 1)]


def started(seconds: int | None, job_id: int = 1) -> ChangeTask:
    change = change_task(task(S.PENDING), Event.KILLED, ChangeCause(Reason.CANCELLED), now=NOW)
    at = None if seconds is None else CREATED + seconds * SECOND
    return replace(change, job_id=job_id, started_at=at)


def test_job_start_is_the_earliest_start_of_its_tasks() -> None:
    changes = [started(5), started(None), started(3), started(9), started(2, job_id=4)]
    assert first_starts(changes) == {1: CREATED + 3 * SECOND, 4: CREATED + 2 * SECOND}
    assert first_starts([started(None)]) == {}


def test_job_start_is_set_once() -> None:
    given = JobContext(starts={1: NOW})
    assert given.add_to(JOB).started_at == NOW
    assert given.add_to(replace(JOB, started_at=CREATED)).started_at == CREATED
    assert given.add_to(replace(JOB, job_id=2)).started_at is None


def test_unblocked_job_no_longer_waits_for_jobs() -> None:
    blocked = replace(JOB, waits_for_jobs=True)
    assert JobContext(unblocked=frozenset({1})).add_to(blocked).waits_for_jobs is False
    assert JobContext(unblocked=frozenset({2})).add_to(blocked).waits_for_jobs is True


def test_job_gets_its_ending_state_reason_and_message() -> None:
    ending = JobContext(endings={1: END}).add_to(JOB)
    assert (ending.ending_as, ending.ending_reason) == (S.KILLED, Reason.CANCELLED)
    assert ending.failure_reason == "enough"
    known = replace(JOB, failure_reason="known")
    silent = JobContext(endings={1: replace(END, message="")})
    assert silent.add_to(known).failure_reason == "known"
    assert JobContext(endings={2: END}).add_to(JOB) == JOB
    assert JobContext().add_to(JOB) == JOB


@pytest.mark.parametrize(
    "job",
    [
        replace(JOB, ending_as=S.FAILED, ending_reason="first"),
        *(replace(JOB, state=state) for state in sorted(TERMINAL)),
    ],
)
def test_first_ending_is_kept(job: JobRow) -> None:
    assert JobContext(endings={1: END}).add_to(job) == job
