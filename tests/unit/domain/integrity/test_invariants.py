"""The invariants by themselves: consistent rows have no violation, each planted one is named."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from controlplane.contract.states import TaskState as S
from controlplane.domain.cache.policy import CacheStatus
from controlplane.domain.integrity import INVARIANTS, IntegrityRows, find_violations
from controlplane.domain.integrity.rows import (
    AttemptRecord,
    CacheUseRecord,
    CellRecord,
    DependencyRecord,
    FiringRecord,
    GroupRecord,
    JobRecord,
    KeyRecord,
    StepRecord,
    StoredTotalRecord,
    TaskCounts,
    TaskRecord,
)
from controlplane.domain.state.dependencies import JobMilestones

T0 = datetime(2026, 1, 1, tzinfo=UTC)
FIRST, SECOND, THIRD = UUID(int=1), UUID(int=2), UUID(int=3)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def attempt(uid: UUID, task_id: int, number: int, state: S, **more: Any) -> AttemptRecord:
    facts = AttemptRecord(
        uid, task_id, 1, 1, 1, number, state, "", 0, "", at(1), None, None, None, ""
    )
    return replace(facts, **more)


def counts(**states: int) -> list[int]:
    found = [0] * (max(S) + 1)
    for name, count in states.items():
        found[S[name]] = count
    return found


def task(task_id: int, index: int, state: S, **more: Any) -> TaskRecord:
    facts = TaskRecord(task_id, 1, 1, index, state, 0, None, False, 0, 0, 0, 0, 0, None)
    return replace(facts, **more)


ENDED = {"started_at": at(2), "finished_at": at(3), "released_at": at(3)}

CONSISTENT = IntegrityRows(
    jobs=[JobRecord(1, S.RUNNING, None, 2, False, 0, False, False, False, at(2), None, None)],
    groups=[
        GroupRecord(
            1,
            1,
            "main",
            counts(SUCCEEDED=1, ASSIGNED=1),
            2,
            2,
            2,
            0,
            T0,
            1,
            100,
            3,
            False,
            "",
        )
    ],
    task_counts={1: TaskCounts({S.SUCCEEDED: 1, S.ASSIGNED: 1})},
    tasks=[
        task(
            1,
            0,
            S.SUCCEEDED,
            attempt_number=2,
            attempt_uid=SECOND,
            failure_count=1,
            finished_at=at(6),
        ),
        task(2, 1, S.ASSIGNED, attempt_number=1, attempt_uid=THIRD, attempt_open=True),
    ],
    attempts=[
        attempt(
            FIRST, 1, 1, S.FAILED, charged="failure", charge=1, release_kind="confirmed", **ENDED
        ),
        attempt(
            SECOND,
            1,
            2,
            S.SUCCEEDED,
            created_at=at(4),
            finished_at=at(6),
            released_at=at(6),
            release_kind="confirmed",
        ),
        attempt(THIRD, 2, 1, S.ASSIGNED),
    ],
    steps=[
        StepRecord(1, 1, None, None, None, S.PENDING, None, "submitted"),
        StepRecord(2, 1, 1, FIRST, S.PENDING, S.ASSIGNED, S.ASSIGNED, "placed"),
        StepRecord(3, 1, None, None, S.PENDING, S.RUNNING, None, "tasks_decided"),
        StepRecord(4, 1, 1, FIRST, S.ASSIGNED, S.PENDING, S.FAILED, "exit_status"),
        StepRecord(5, 1, 1, SECOND, S.PENDING, S.ASSIGNED, S.ASSIGNED, "placed"),
        StepRecord(6, 1, 1, SECOND, S.ASSIGNED, S.SUCCEEDED, S.SUCCEEDED, "succeeded"),
        StepRecord(7, 1, 2, THIRD, S.PENDING, S.ASSIGNED, S.ASSIGNED, "placed"),
    ],
    cells=[CellRecord(1, "cell-1", "one", "one", {"cpu_millis": 1000}, {"cpu_millis": 1000})],
    known_cells=frozenset({1}),
    totals=[StoredTotalRecord(1, 7, 7)],
    keys=[KeyRecord(1, "k", 2, 2), KeyRecord(1, "free", 9, None)],
    firings=[
        FiringRecord(1, 1, "nightly/2031-05-04T02:30:00Z", 1, 1, "nightly/2031-05-04T02:30:00Z", 1),
        FiringRecord(2, 1, "nightly/2031-05-03T02:30:00Z", 9, None, None, 1),
    ],
)


def change(kind: str, position: int, **columns: Any) -> Callable[[IntegrityRows], IntegrityRows]:
    def plant(rows: IntegrityRows) -> IntegrityRows:
        records = list(getattr(rows, kind))
        records[position] = replace(records[position], **columns)
        return replace(rows, **{kind: records})

    return plant


def add(kind: str, record: Any) -> Callable[[IntegrityRows], IntegrityRows]:
    return lambda rows: replace(rows, **{kind: [*getattr(rows, kind), record]})


def both(
    one: Callable[[IntegrityRows], IntegrityRows], other: Callable[[IntegrityRows], IntegrityRows]
) -> Callable[[IntegrityRows], IntegrityRows]:
    return lambda rows: other(one(rows))


def use(state: S, status: CacheStatus, **changes: Any) -> CacheUseRecord:
    plain = CacheUseRecord(1, 1, state, status, False, SECOND, None, False, False, None)
    return replace(plain, **changes)


WAITING = JobMilestones(S.PENDING, None, None)
PLANTED: list[tuple[int, Callable[[IntegrityRows], IntegrityRows]]] = [
    (1, add("attempts", attempt(UUID(int=4), 2, 2, S.ASSIGNED))),
    (2, change("tasks", 1, attempt_open=False)),
    (3, change("attempts", 2, state=S.RUNNING)),
    (4, change("attempts", 0, release_kind="")),
    (5, change("attempts", 0, finished_at=at(9))),
    (6, change("attempts", 1, created_at=at(2.5))),
    (7, change("tasks", 0, attempt_number=3)),
    (8, change("tasks", 0, failure_count=2)),
    (9, change("attempts", 2, charged="system")),
    (10, change("tasks", 1, preemption_count=101)),
    (11, change("attempts", 0, state=S.SUCCEEDED)),
    (12, change("attempts", 2, cell_id=9)),
    (13, change("tasks", 0, finished_at=None)),
    (14, change("groups", 0, at_most_once=True)),
    (
        15,
        both(
            change("groups", 0, exclusive="strict"),
            change("attempts", 0, release_kind="cell_lost"),
        ),
    ),
    (16, change("attempts", 0, retry_rule=1)),
    (17, change("attempts", 0, resources='{"cpu_millis": 1}')),
    (20, change("tasks", 1, index=5)),
    (21, change("groups", 0, counts=counts(SUCCEEDED=2))),
    (22, change("groups", 0, killed_by_dependency=1)),
    (23, change("jobs", 0, state=S.PENDING)),
    (24, change("jobs", 0, finished_at=at(9))),
    (25, change("jobs", 0, settled_at=at(9))),
    (26, change("groups", 0, startable_at=None)),
    (27, change("jobs", 0, coscheduled=True, min_available=3)),
    (28, change("jobs", 0, waits_for_jobs=True)),
    (30, change("cells", 0, used={"cpu_millis": 1001})),
    (31, change("cells", 0, lease_incarnation="two")),
    (40, change("steps", 3, from_state=S.RUNNING)),
    (41, add("steps", StepRecord(8, 1, 1, SECOND, S.SUCCEEDED, S.FAILED, S.FAILED, "released"))),
    (42, change("steps", 1, to_state=S.UNSCHEDULABLE, from_state=S.RUNNING)),
    (43, change("steps", 1, reason="because")),
    (44, change("steps", 6, attempt_uid=None)),
    (50, lambda rows: replace(rows, awaited=frozenset({1}))),
    (51, add("dependencies", DependencyRecord(1, 1, 2, "finished", None, WAITING))),
    (52, add("dependencies", DependencyRecord(1, 1, 2, "finished", None, None))),
    (60, add("cache_uses", use(S.PENDING, CacheStatus.MISS, is_blocked=True))),
    (61, add("cache_uses", use(S.SUCCEEDED, CacheStatus.HIT, entry_id=1))),
    (62, add("cache_uses", use(S.RUNNING, CacheStatus.MISS, is_reserved=True, owner_uid=FIRST))),
    (70, change("totals", 0, counted_bytes=8)),
    (80, change("keys", 0, held=3)),
    (81, change("attempts", 2, concurrency_id=7)),
    (90, change("firings", 0, job_guid="nightly/2031-05-03T02:30:00Z")),
    (91, change("firings", 1, starts=2)),
]


def test_consistent_rows_have_no_violations() -> None:
    assert find_violations(CONSISTENT) == []


@pytest.mark.parametrize(("number", "plant"), PLANTED, ids=[f"INV-{n}" for n, _ in PLANTED])
def test_a_planted_violation_is_named(
    number: int, plant: Callable[[IntegrityRows], IntegrityRows]
) -> None:
    assert number in {violation.number for violation in find_violations(plant(CONSISTENT))}


@pytest.mark.parametrize("wrong", [{"job_guid": None}, {"job_project_id": 2}])
def test_job_of_an_instant_has_its_guid_in_the_project_of_the_schedule(
    wrong: dict[str, Any],
) -> None:
    [found] = find_violations(change("firings", 0, **wrong)(CONSISTENT))
    assert (found.number, found.job_id) == (90, 0)


def test_each_invariant_has_a_unique_number_and_a_planted_violation() -> None:
    numbers = [invariant.number for invariant in INVARIANTS]
    assert numbers == sorted(set(numbers)) == [number for number, _ in PLANTED]
