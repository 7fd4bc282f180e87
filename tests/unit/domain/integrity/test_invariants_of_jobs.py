"""Each invariant of jobs, groups, cells and history: what contradicts it, and what does not."""

from dataclasses import replace
from typing import Any

import pytest

from controlplane.contract.states import TaskState as S
from controlplane.domain.integrity import INVARIANTS, find_violations
from controlplane.domain.integrity import history as his
from controlplane.domain.integrity import jobs as inv
from controlplane.domain.integrity.catalogue import render_document
from controlplane.domain.integrity.invariant import Repair
from controlplane.domain.integrity.rows import IntegrityRows
from controlplane.domain.state.dependencies import JobMilestones
from controlplane.domain.state.states import JOB_STATES, OPEN, TERMINAL
from tests.harness.domain.records import (
    T0,
    at,
    attempt,
    cell,
    dependency,
    found,
    group,
    job,
    released,
    repairs,
    step,
    task,
    uid,
)

OK, F, K, P, R, A = S.SUCCEEDED, S.FAILED, S.KILLED, S.PENDING, S.RUNNING, S.ASSIGNED
WF, U = S.WORKER_FAILED, S.UNSCHEDULABLE
A1 = f"attempt {uid(1)}"
Line = tuple[str, str]


def tasks(*states: S, **changes: Any) -> list[Any]:
    return [task(state, 3 + n, index=n, **changes) for n, state in enumerate(states)]


# Groups.


def test_inv_20_group_has_its_number_of_tasks() -> None:
    def of(indices: list[int], **changes: Any) -> list[Line]:
        rows = [task(task_id=10 + n, index=index) for n, index in enumerate(indices)]
        groups = [group(replicas=3, **{"task_count": 3, **changes})]
        return found(inv.groups_complete, groups=groups, tasks=rows)

    assert of([0, 1, 2]) == []
    assert of([2, 0, 1]) == []
    assert of([0, 2], task_count=2) == []  # a retry of those two
    for wrong in ([0, 1], [0, 1, 1], [0, 1, 3], [-1, 0, 1], []):
        text = f"3 tasks expected, there are {sorted(wrong)}"
        assert of(wrong) == [("group 2 (main)", text)]
    assert of([0, 1, 2], task_count=2) == [
        ("group 2 (main)", "2 tasks expected, there are [0, 1, 2]")
    ]


def test_inv_21_group_counts_match_its_tasks() -> None:
    def of(counts: dict[S, int], **changes: Any) -> list[Line]:
        return found(inv.counts_right, groups=[group(counts, **changes)], tasks=tasks(OK, OK, R))

    right = "its tasks are 1 RUNNING, 2 SUCCEEDED"
    assert of({OK: 2, R: 1}) == of({OK: 2, R: 1, F: 0}) == []
    assert of({OK: 1, R: 2}) == [("group 2 (main)", f"counts 2 RUNNING, 1 SUCCEEDED, {right}")]
    assert of({OK: 2}) == [("group 2 (main)", f"counts 2 SUCCEEDED, {right}")]
    assert of({}) == [("group 2 (main)", f"counts none, {right}")]
    unspecified = [1, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0]
    row = replace(group({OK: 2, R: 1}), counts=unspecified)
    assert len(found(inv.counts_right, groups=[row], tasks=tasks(R, OK, OK))) == 1
    assert found(inv.counts_right, groups=[group({OK: 1})]) == [
        ("group 2 (main)", "counts 1 SUCCEEDED, its tasks are none")
    ]
    assert repairs(inv.counts_right, groups=[group({OK: 1})]) == [(Repair.COUNT, 2)]


def test_inv_22_excused_count_matches_the_history() -> None:
    killed = [
        step(0, P, P, reason="refused"),
        step(1, P, K, reason="dependency_failed"),
        step(2, K, K, reason="dependency_failed"),
        step(3, P, K, reason="cancelled", task_id=4),
        step(4, P, K, reason="dependency_failed", task_id=9),
    ]

    def of(stored: int, *steps: Any) -> list[Line]:
        groups = [group(killed_by_dependency=stored)]
        return found(inv.excused_right, groups=groups, tasks=tasks(K, K), steps=steps)

    assert of(1, *killed) == []
    assert of(0) == []
    assert of(2, *killed) == [("group 2 (main)", "killed_by_dependency is 2, not 1")]
    assert of(1) == [("group 2 (main)", "killed_by_dependency is 1, not 0")]
    groups = [group(killed_by_dependency=1)]
    assert repairs(inv.excused_right, groups=groups) == [(Repair.COUNT, 2)]


# Jobs.


def rows_of(row: Any, *states: S, excused: int = 0, **changes: Any) -> dict[str, Any]:
    steps = [step(n, P, K, task_id=3 + n, reason="dependency_failed") for n in range(excused)]
    return {
        "jobs": [row],
        "groups": [group(**changes)],
        "tasks": tasks(*states),
        "steps": steps,
    }


def follows(row: Any, *states: S, **changes: Any) -> list[Line]:
    return found(inv.follows_from_tasks, **rows_of(row, *states, **changes))


def test_inv_23_job_state_follows_from_its_tasks() -> None:
    final = "but an end is final"
    assert follows(job(OK), OK, OK) == []
    assert follows(job(F), F, OK) == []
    assert follows(job(R), R, P) == []
    assert follows(job(P), P, P) == []
    assert follows(job(OK), F) == [
        ("job 1", f"is SUCCEEDED, FAILED follows from its tasks, {final}")
    ]
    assert follows(job(OK), OK, R) == [
        ("job 1", f"is SUCCEEDED, RUNNING follows from its tasks, {final}")
    ]
    begun = [("job 1", "is PENDING, RUNNING follows from its tasks")]
    assert follows(job(P), A) == begun
    assert follows(job(P, started_at=T0), P) == begun
    assert follows(job(R), P) == [("job 1", "is RUNNING, PENDING follows from its tasks")]
    assert follows(job(R, started_at=T0), P, P) == []  # it ran once, and all wait again
    assert follows(job(R), OK, OK) == [("job 1", "is RUNNING, SUCCEEDED follows from its tasks")]


def test_inv_23_ending_state_is_kept() -> None:
    assert follows(job(K, ending_as=K), F) == []
    assert follows(job(F, ending_as=K), F) == [
        ("job 1", "is FAILED, KILLED follows from its tasks, but an end is final")
    ]
    assert follows(job(R, ending_as=F), F, R) == []
    assert follows(job(R, ending_as=K), F, R) == []
    assert follows(job(P, ending_as=K), P, K) == []
    assert follows(job(R), F, R) == [("job 1", "is not ending, FAILED follows from its tasks")]


def test_inv_23_recount_derives_the_job_state_unless_ended() -> None:
    def of(row: Any, *states: S) -> list[Any]:
        return repairs(inv.follows_from_tasks, **rows_of(row, *states))

    assert of(job(R), OK) == of(job(R), F, R) == of(job(P), A) == [(Repair.ROLL, 1)]
    for states in ((OK, F), (OK, R)):
        assert of(job(OK, finished_at=T0), *states) == [(None, 0)]


@pytest.mark.parametrize("state", sorted(set(S) - JOB_STATES))
def test_inv_23_job_never_has_a_task_only_state(state: S) -> None:
    assert follows(job(state), R) == [("job 1", f"a job is never {state.name}")]


def test_inv_23_uses_minima_tolerance_and_excused_tasks() -> None:
    assert follows(job(OK, max_task_failures=1), OK, F) == []
    assert follows(job(OK, explicit_minimum=True), OK, WF) == []
    assert follows(job(WF), OK, WF) == []
    two = {"explicit_minimum": True, "min_available": 2}
    assert follows(job(OK, **two), OK, OK, WF) == []
    assert follows(job(WF, **two), OK, WF) == []
    assert follows(job(F), K, OK, excused=1) == []
    assert follows(job(K), K, OK) == []
    assert follows(job(K), K, OK, excused=1) == [
        ("job 1", "is KILLED, FAILED follows from its tasks, but an end is final")
    ]
    assert follows(job(WF, explicit_minimum=True), OK, WF, min_available=2) == []


@pytest.mark.parametrize("state", sorted(OPEN))
def test_inv_24_a_job_ends_with_its_tasks(state: S) -> None:
    def of(row: Any, *states: S) -> list[Line]:
        return found(inv.ends_with_its_tasks, **rows_of(row, *states))

    assert of(job(R), OK, state) == []
    assert of(job(OK, finished_at=T0), OK) == []
    assert of(job(OK, finished_at=T0), OK, state) == [
        ("job 1", f"finished at {T0}, tasks open: True")
    ]
    assert of(job(R), OK) == [("job 1", "finished at None, tasks open: False")]
    assert of(job(R, finished_at=T0), OK) == [("job 1", f"RUNNING, finished at {T0}")]
    assert of(job(K), state) == [("job 1", "KILLED, finished at None")]


def test_inv_25_settled_job_has_ended_and_holds_no_attempt() -> None:
    def of(row: Any, *held: Any) -> list[Line]:
        return found(inv.settled_without_attempts, jobs=[row], attempts=held)

    done = job(OK, finished_at=at(5), settled_at=at(5))
    early = [("job 1", "settled before it was finished")]
    assert of(done, released(OK)) == []
    assert of(job(OK, finished_at=at(5)), attempt(OK)) == []
    assert of(job(OK, finished_at=at(6), settled_at=at(5))) == early
    assert of(job(OK, settled_at=at(5))) == early
    assert of(done, attempt(OK)) == [("job 1", "settled, but an attempt of it is not released")]
    assert of(done, attempt(OK, job_id=9)) == []
    rows = [job(R, 9), job(OK, settled_at=at(5))]
    assert found(inv.settled_without_attempts, jobs=rows) == early


def test_inv_26_attempt_is_placed_only_while_its_group_may_start() -> None:
    def of(row: Any, **changes: Any) -> list[Line]:
        groups = [group(**changes)]
        return found(inv.placed_when_it_might, jobs=[row], groups=groups, attempts=[attempt()])

    early = [(A1, "placed before group main might start")]
    assert of(job()) == []
    assert of(job(), startable_at=at(1)) == []
    assert of(job(), startable_at=at(2)) == early
    assert of(job(), startable_at=None) == early
    assert of(job(finished_at=at(1))) == []
    assert of(job(finished_at=at(0.5))) == [(A1, "placed after job 1 had ended")]
    assert of(job(job_id=9), startable_at=None) == []  # INV-12's business
    assert found(inv.placed_when_it_might, jobs=[job()], attempts=[attempt()]) == []
    held = [attempt(number=2, group_id=9), attempt()]
    late: dict[str, Any] = {"jobs": [job()], "groups": [group(startable_at=None)]}
    assert found(inv.placed_when_it_might, **late, attempts=held) == early


def test_inv_27_gang_meets_its_minima_or_is_requeued() -> None:
    def of(row: Any, *states: S, **changes: Any) -> list[Line]:
        groups = [group(**{"min_available": 2, **changes})]
        return found(inv.gangs_whole, jobs=[row], groups=groups, tasks=tasks(*states))

    gang: dict[str, Any] = {"coscheduled": True, "min_available": 2}
    broken = [("job 1", "a gang below its minima, and it is not being requeued")]
    assert of(job(**gang), R, R) == []
    assert of(job(**gang), P, P) == []
    assert of(job(**gang), R, P) == broken
    assert of(job(**{**gang, "min_available": 3}), R, R, P) == broken
    assert of(job(**gang), R, P, at_most_once=True) == []
    groups = [group({P: 2}, id=9, min_available=2), group(min_available=2)]
    rows = {"jobs": [job(job_id=8), job(**gang)], "groups": groups, "tasks": tasks(R, P)}
    assert found(inv.gangs_whole, **rows) == broken
    for changes in ({"coscheduled": False}, {"is_requeuing": True}, {"ending_as": K}):
        assert of(job(**{**gang, **changes}), R, P) == []
    for state in sorted(TERMINAL):
        assert of(job(state, **gang), R, P) == []


def test_inv_28_blocked_job_has_no_startable_group() -> None:
    def of(waits: bool, **changes: Any) -> list[Line]:
        rows = {"jobs": [job(waits_for_jobs=waits)], "groups": [group(**changes)]}
        return found(inv.blocked_not_startable, **rows)

    assert of(True) == [("group 2 (main)", "may start, but job 1 waits for others")]
    assert of(True, startable_at=None) == of(False) == of(True, job_id=9) == []


# Cells.


def test_inv_30_no_cell_is_over_committed() -> None:
    def of(**used: int) -> list[Line]:
        return found(inv.never_over_committed, cells=[cell(used=used)])

    assert of() == of(cpu_millis=1000) == of(gpu=0) == []
    assert of(cpu_millis=1001, gpu=1) == [
        ("cell 5 (north)", "1001 of 1000 cpu_millis are in use"),
        ("cell 5 (north)", "1 of 0 gpu are in use"),
    ]


def test_inv_31_lease_has_the_incarnation_of_its_cell() -> None:
    def of(**changes: Any) -> list[Line]:
        return found(inv.lease_of_its_incarnation, cells=[cell(**changes)])

    assert of() == of(incarnation="", lease_incarnation=None) == []
    assert of(lease_incarnation="two") == [
        ("cell 5 (north)", "incarnation 'one', its lease's is 'two'")
    ]
    assert len(of(lease_incarnation=None)) == 1


# What waits for other jobs.


@pytest.mark.parametrize("is_watched", [True, False])
def test_inv_50_job_with_dependents_is_watched(is_watched: bool) -> None:
    rows: dict[str, Any] = {"jobs": [job(is_watched=is_watched)], "awaited": frozenset({1})}
    expected = [("job 1", "is_watched is false, but other jobs depend on it")]
    assert found(inv.awaited_watched, **rows) == ([] if is_watched else expected)
    assert repairs(inv.awaited_watched, **rows) == ([] if is_watched else [(Repair.WATCH, 1)])
    assert found(inv.awaited_watched, **{**rows, "awaited": frozenset({2})}) == []


def test_inv_51_dependent_job_has_the_waiting_flag() -> None:
    def of(row: Any, **changes: Any) -> dict[str, Any]:
        return {
            "jobs": [row],
            "groups": [group(**{"startable_at": None, **changes})],
            "dependencies": [dependency()],
        }

    text = "waits_for_jobs is false, but it waits for other jobs"
    assert found(inv.dependent_waits, **of(job(P))) == [("job 1", text)]
    assert repairs(inv.dependent_waits, **of(job(P))) == [(Repair.BLOCK, 1)]
    begun = of(job(P), startable_at=T0)
    assert found(inv.dependent_waits, **begun) == [("job 1", f"{text}, and may start")]
    assert repairs(inv.dependent_waits, **begun) == [(None, 0)]
    for changes in ({"waits_for_jobs": True}, {"finished_at": T0}, {"ending_as": K}, {"job_id": 9}):
        assert found(inv.dependent_waits, **of(job(P, **dict[str, Any](changes)))) == []


@pytest.mark.parametrize(
    ("until", "other", "wanted"),
    [
        ("succeeded", JobMilestones(OK, T0, None), Repair.MEET),
        ("succeeded", JobMilestones(F, T0, None), Repair.FAIL),
        ("succeeded", JobMilestones(R, T0, None), None),
        ("started", JobMilestones(R, T0, None), Repair.MEET),
        ("finished", JobMilestones(F, T0, None), Repair.MEET),
        ("settled", JobMilestones(F, T0, None), None),
        ("settled", JobMilestones(F, T0, T0), Repair.MEET),
        ("finished", None, Repair.MEET),
        ("settled", None, Repair.MEET),
        ("succeeded", None, Repair.FAIL),
        ("started", None, Repair.FAIL),
    ],
)
def test_inv_52_decidable_dependency_is_decided(
    until: str, other: JobMilestones | None, wanted: Repair | None
) -> None:
    rows: dict[str, Any] = {
        "jobs": [job(job_id=8)],
        "dependencies": [dependency(until=until, other=other)],
    }
    texts = {Repair.MEET: "is met, but open", Repair.FAIL: "cannot be met, but is open"}
    if wanted is None:
        assert found(inv.dependencies_decided, **rows) == []
    else:
        line = ("job 1", f"its dependency on job 8 (until {until}) {texts[wanted]}")
        assert found(inv.dependencies_decided, **rows) == [line]
        assert repairs(inv.dependencies_decided, **rows) == [(wanted, 7)]
    failed = [dependency(until=until, other=other, failed_at=T0)]
    assert found(inv.dependencies_decided, jobs=rows["jobs"], dependencies=failed) == []
    # Only with the other job's lock a recount may decide, unless that job is deleted.
    elsewhere = found(inv.dependencies_decided, dependencies=rows["dependencies"])
    assert bool(elsewhere) == (other is None)


# History.


def test_inv_40_a_history_is_connected() -> None:
    def of(state: S, *steps: Any) -> list[Line]:
        return found(his.connected, tasks=[task(state)], steps=steps)

    life = [step(1, P, A), step(2, A, R), step(3, R, OK)]
    assert of(OK, *life) == []
    assert of(OK, *reversed(life)) == []
    assert of(P) == []
    assert of(R, *life) == [("task 3", "its history ends at SUCCEEDED, it is RUNNING")]
    assert of(A) == [("task 3", "its history ends at PENDING, it is ASSIGNED")]
    assert of(OK, life[0], life[2]) == [("task 3", "step 3 comes from RUNNING, not from ASSIGNED")]
    assert of(A, step(1, None, A)) == [("task 3", "step 1 comes from nothing, not from PENDING")]


def test_inv_40_job_history_begins_without_a_state() -> None:
    def of(state: S, *steps: Any) -> list[Line]:
        return found(his.connected, jobs=[job(state)], steps=steps)

    own: dict[str, Any] = {"task_id": None}
    submitted = step(1, None, P, **own)
    assert of(R, submitted, step(2, P, A), step(3, P, R, **own)) == []
    assert of(R, submitted) == [("job 1", "its history ends at PENDING, it is RUNNING")]
    assert of(R, step(3, P, R, **own)) == [("job 1", "step 3 comes from PENDING, not from nothing")]
    assert of(P) == [("job 1", "its history ends at nothing, it is PENDING")]


@pytest.mark.parametrize("state", sorted(S))
def test_inv_41_terminal_is_final(state: S) -> None:
    left = [("task 3", f"left {state.name} for PENDING")]
    other = found(his.final, steps=[step(1, state, P)])
    assert other == (left if state in TERMINAL else [])
    assert found(his.final, steps=[step(1, state, state)]) == []
    own = found(his.final, steps=[step(1, F, None, task_id=None)])
    assert own == [("job 1", "left FAILED for nothing")]


def test_inv_42_each_change_is_in_the_table() -> None:
    def of(old: S | None, new: S | None, **changes: Any) -> list[Line]:
        return found(his.legal, steps=[step(1, old, new, **changes)])

    for old, new in ((P, A), (A, R), (R, OK), (R, P), (S.BUILDING, P), (P, U), (A, P), (R, R)):
        assert of(old, new) == []
    assert of(None, P) == of(P, OK) == []  # a submission; an end from the cache
    assert of(P, R) == [("task 3", "no event leads from PENDING to RUNNING")]
    assert of(R, A) == [("task 3", "no event leads from RUNNING to ASSIGNED")]
    assert of(R, U) == [("task 3", "no event leads from RUNNING to UNSCHEDULABLE")]
    assert of(P, R, task_id=None) == []


def test_inv_43_a_reason_is_known() -> None:
    assert found(his.reasoned, steps=[step(1, P, A), step(2, A, K, reason="cancelled")]) == []
    assert found(his.reasoned, steps=[step(7, P, A, reason="because")]) == [
        ("task 3", "step 7 has the unknown reason 'because'")
    ]


def test_inv_44_each_attempt_is_in_the_history() -> None:
    def of(one: Any, *steps: Any) -> list[Line]:
        return found(his.attempts_recorded, attempts=[one], steps=steps)

    placed = step(1, P, A, attempt_uid=uid(1), attempt_state=A)
    end = step(2, A, F, attempt_uid=uid(1), attempt_state=F, reason="exit_status")
    assert of(attempt(A), placed) == []
    assert of(attempt(F), placed, end) == []
    assert of(attempt(A)) == [(A1, "its placement is not in the history")]
    assert of(attempt(F), end) == [(A1, "its placement is not in the history")]
    lost = [(A1, "its end is not in the history")]
    assert of(attempt(F), placed) == lost
    assert of(attempt(K), placed, end) == lost


# The list.


def test_violations_are_sorted_by_number_and_name_their_row() -> None:
    rows = IntegrityRows(cells=[cell(lease_incarnation="two", used={"cpu_millis": 1001})])
    first, second = find_violations(rows)
    assert (first.number, str(first.row)) == (30, "cell 5 (north)")
    assert str(first) == "INV-30 cell 5 (north): 1001 of 1000 cpu_millis are in use"
    assert second.number == 31


def test_page_lists_every_invariant() -> None:
    page = render_document()
    for one in INVARIANTS:
        assert f"| INV-{one.number} | {one.statement} | {one.upheld_by} | {one.repair} |" in page
    assert len({one.check for one in INVARIANTS}) == len(INVARIANTS)
