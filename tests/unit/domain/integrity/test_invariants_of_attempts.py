"""Each invariant of tasks and attempts: what contradicts it, word for word, and what does not."""

from typing import Any

import pytest

from controlplane.contract.states import TaskState as S
from controlplane.domain.integrity import attempts as inv
from controlplane.domain.integrity.invariant import Repair
from controlplane.domain.state.states import ACTIVE, ATTEMPT_STATES, TERMINAL
from tests.harness.domain.records import (
    T0,
    at,
    attempt,
    found,
    group,
    job,
    released,
    repairs,
    task,
    uid,
)

OK, F, K, P, R, A = S.SUCCEEDED, S.FAILED, S.KILLED, S.PENDING, S.RUNNING, S.ASSIGNED
A1 = f"attempt {uid(1)}"
Line = tuple[str, str]


def test_inv_1_at_most_one_attempt_is_unreleased() -> None:
    def of(*held: object) -> list[Line]:
        return found(inv.one_unreleased, tasks=[task()], attempts=held)

    assert of(attempt(F), attempt(number=2)) == [("task 3", "2 attempts of it are not released")]
    assert of(released(F), attempt(number=2)) == []
    assert of(attempt(), attempt(number=2, task_id=4)) == []


def test_inv_2_task_is_open_iff_an_attempt_is_unreleased() -> None:
    def of(row: object, *held: object) -> list[Line]:
        return found(inv.open_iff_unreleased, tasks=[row], attempts=held)

    opened: dict[str, Any] = {"attempt_open": True, "attempt_uid": uid(1)}
    assert of(task(R, **opened), attempt()) == []
    assert of(task(), released(F)) == []
    assert of(task()) == []
    assert of(task(R), attempt()) == [("task 3", "RUNNING, attempt_open is False, unreleased: 1")]
    assert of(task(**opened), released(F)) == [
        ("task 3", "PENDING, attempt_open is True, unreleased: 0")
    ]
    for state in sorted(ACTIVE):
        assert of(task(state, **opened)) == [
            ("task 3", f"{state.name}, attempt_open is True, unreleased: 0")
        ]
    other: dict[str, Any] = {"attempt_open": True, "attempt_uid": uid(2)}
    text = f"its present attempt is {uid(2)}, not {uid(1)}"
    assert of(task(R, **other), attempt(), released(F, 2)) == [("task 3", text)]


def test_inv_2_a_recount_sets_the_flag_or_requeues_the_task() -> None:
    def of(row: object, *held: object) -> list[Any]:
        return repairs(inv.open_iff_unreleased, tasks=[row], attempts=held)

    opened: dict[str, Any] = {"attempt_open": True, "attempt_uid": uid(1)}
    assert of(task(R), attempt()) == [(Repair.OPEN, 3)]
    assert of(task(P, **opened), released(F)) == [(Repair.CLOSE, 3)]
    for state in sorted(ACTIVE):
        assert of(task(state, **opened)) == [(Repair.REQUEUE, 3)]
    assert of(task(R, attempt_open=True, attempt_uid=uid(2)), attempt()) == [(None, 0)]


@pytest.mark.parametrize("state", sorted(ACTIVE))
def test_inv_3_task_and_attempt_are_active_together(state: S) -> None:
    def of(row: object, *held: object) -> list[Line]:
        return found(inv.active_together, tasks=[row], attempts=held)

    present = task(state, attempt_uid=uid(1))
    wrong = [("task 3", f"{state.name}, but its attempts are not")]
    assert of(present, attempt(state)) == []
    assert of(present, attempt(state), released(F, 2)) == []
    assert of(present) == wrong
    assert of(present, attempt(F)) == wrong
    assert of(present, released(state)) == wrong
    assert of(present, attempt(state, 2)) == wrong
    assert of(present, attempt(min(ACTIVE - {state}))) == wrong
    assert of(task(P), attempt(state)) == [("task 3", f"PENDING, but {A1} is active")]
    assert of(task(P), attempt(F)) == []


def test_inv_4_release_follows_the_end_and_has_a_kind() -> None:
    def of(one: object) -> list[Line]:
        return found(inv.released_in_order, attempts=[one])

    for kind in ("confirmed", "cell_lost", "operator"):
        assert of(released(F, release_kind=kind)) == []
        assert of(attempt(release_kind=kind)) == [(A1, "has a release kind but is not released")]
    assert of(attempt()) == []
    assert of(released(F, release_kind="")) == [(A1, "released (no release kind) in FAILED")]
    assert of(released(F, release_kind="x")) == [(A1, "released (x) in FAILED")]
    for state in sorted(ACTIVE):
        assert of(released(state)) == [(A1, f"released (confirmed) in {state.name}")]


@pytest.mark.parametrize("name", ["created_at", "started_at", "finished_at", "released_at"])
def test_inv_5_instants_in_order(name: str) -> None:
    names = ["created_at", "started_at", "finished_at", "released_at"]
    instants: dict[str, Any] = {each: at(n) for n, each in enumerate(names)}
    assert found(inv.instants_in_order, attempts=[attempt(**instants)]) == []
    moved: dict[str, Any] = {**instants, name: at(9) if name == "created_at" else at(-1)}
    assert found(inv.instants_in_order, attempts=[attempt(**moved)]) == [
        (A1, "its instants are not in order")
    ]
    unknown: dict[str, Any] = {**instants, "started_at": None}
    assert found(inv.instants_in_order, attempts=[attempt(**unknown)]) == []
    assert (
        found(inv.instants_in_order, attempts=[attempt(**dict[str, Any](dict.fromkeys(names, T0)))])
        == []
    )


def test_inv_6_attempt_begins_after_the_previous_release() -> None:
    def of(*held: object) -> list[Line]:
        return found(inv.one_after_the_other, tasks=[task()], attempts=held)

    wrong = [("task 3", "attempt 2 began before 1 was released")]
    assert of(released(F, 1, 5), attempt(number=2, created_at=at(5))) == []
    assert of(released(F, 1, 5), attempt(number=2, created_at=at(4))) == wrong
    assert of(attempt(F), attempt(number=2, created_at=at(4))) == wrong
    assert of(attempt(number=2, created_at=at(4)), released(F, 1, 5)) == wrong
    assert of(released(F, 1, 5), attempt(number=2, created_at=at(4), task_id=4)) == []


def test_inv_7_attempts_are_numbered_without_gaps() -> None:
    def of(row: object, *numbers: int) -> list[Line]:
        return found(inv.numbered, tasks=[row], attempts=[released(F, n) for n in numbers])

    assert of(task()) == []
    assert of(task(attempt_number=2, attempt_uid=uid(2)), 1, 2) == []
    assert of(task(attempt_number=2, attempt_uid=uid(2)), 2) == [
        ("task 3", "1 attempts, numbered up to 2")
    ]
    assert of(task(attempt_number=1, attempt_uid=uid(1)), 1, 2) == [
        ("task 3", "2 attempts, numbered up to 1")
    ]
    assert of(task(attempt_uid=uid(9))) == [("task 3", "its present attempt is not its last one")]
    assert of(task(attempt_number=2, attempt_uid=uid(1)), 1, 2) == [
        ("task 3", "its present attempt is not its last one")
    ]
    assert of(task(attempt_number=1), 1) == [("task 3", "its present attempt is not its last one")]


@pytest.mark.parametrize(
    ("budget", "column"),
    [
        ("failure", "failure_count"),
        ("preemption", "preemption_count"),
        ("system", "system_failure_count"),
    ],
)
def test_inv_8_counters_equal_the_charges(budget: str, column: str) -> None:
    held = [
        released(F, 1, charged=budget, charge=1),
        released(F, 2, charged=budget, charge=4),
        released(F, 3),
        released(F, 4, charged=budget, charge=7, task_id=4),
    ]
    right, wrong = (task(**dict[str, Any]({column: count})) for count in (5, 6))
    assert found(inv.counters_rederive, tasks=[right], attempts=held) == []
    assert found(inv.counters_rederive, tasks=[wrong], attempts=held) == [
        ("task 3", f"{budget} counter 6, attempts charged 5")
    ]
    assert found(inv.counters_rederive, tasks=[task()]) == []


def test_inv_9_only_ended_attempts_are_charged() -> None:
    def of(one: object) -> list[Line]:
        return found(inv.charged_at_the_end, attempts=[one])

    assert of(attempt()) == []
    assert of(attempt(F, charged="failure", charge=1)) == []
    assert of(attempt(charged="failure", charge=1)) == [(A1, "charged to failure before its end")]
    assert of(attempt(F, charged="failure")) == [(A1, "0 charged to 'failure'")]
    assert of(attempt(F, charge=1)) == [(A1, "1 charged to ''")]


@pytest.mark.parametrize(
    ("budget", "column", "limit"),
    [
        ("failure", "failure_count", 2),
        ("preemption", "preemption_count", 5),
        ("system", "system_row", 3),
    ],
)
@pytest.mark.parametrize(("state", "surplus"), [(P, 0), (R, 0), (F, 1), (S.WORKER_FAILED, 1)])
def test_inv_10_counters_are_within_the_budgets(
    budget: str, column: str, limit: int, state: S, surplus: int
) -> None:
    groups = [group(retries_failure=2, retries_preemption=5, retries_system=3)]

    def of(used: int) -> list[Line]:
        return found(inv.within_budgets, tasks=[task(state, **{column: used})], groups=groups)

    most = limit + surplus
    assert of(most) == []
    assert of(most + 1) == [("task 3", f"{budget}: {most + 1} used, {limit} retries")]
    assert found(inv.within_budgets, tasks=[task(state, **{column: 99})]) == []
    rows = [task(task_id=9, group_id=9), task(state, **{column: most + 1})]
    assert len(found(inv.within_budgets, tasks=rows, groups=groups)) == 1


def test_inv_11_only_the_last_attempt_succeeds() -> None:
    def of(row: object, *held: object) -> list[Line]:
        return found(inv.success_by_an_attempt, tasks=[row], attempts=held)

    done = task(OK, attempt_number=2)
    assert of(done, released(F), released(OK, 2)) == []
    assert of(task(OK)) == []  # from the cache
    assert of(task(F, attempt_number=1), released(F)) == []
    assert of(done, released(OK), released(OK, 2)) == [
        ("task 3", "SUCCEEDED, attempts [1, 2] SUCCEEDED")
    ]
    assert of(done, released(OK), released(F, 2)) == [
        ("task 3", "SUCCEEDED, attempts [1] SUCCEEDED")
    ]
    assert of(task(F, attempt_number=1), released(OK)) == [
        ("task 3", "FAILED, attempts [1] SUCCEEDED")
    ]
    assert of(task(OK, attempt_number=1), released(F)) == [
        ("task 3", "SUCCEEDED without an attempt that did")
    ]


def test_inv_12_links_point_to_existing_rows() -> None:
    rows: dict[str, Any] = {
        "jobs": [job()],
        "groups": [group()],
        "tasks": [task()],
        "known_cells": frozenset({5}),
    }
    assert found(inv.linked, **rows, attempts=[attempt()]) == []
    own = [("task 3", "its group 2 or job 1 is not its own")]
    assert found(inv.linked, **{**rows, "groups": []}) == own
    assert found(inv.linked, **{**rows, "groups": [group(job_id=9)]}) == own
    assert found(inv.linked, **{**rows, "jobs": []}) == own
    assert found(inv.linked, **rows, attempts=[attempt(task_id=9)]) == [(A1, "there is no task 9")]
    others = [(A1, "group or job are not its task's")]
    assert found(inv.linked, **rows, attempts=[attempt(group_id=9)]) == others
    assert found(inv.linked, **rows, attempts=[attempt(job_id=9)]) == others
    assert found(inv.linked, **rows, attempts=[attempt(cell_id=9)]) == [(A1, "there is no cell 9")]


@pytest.mark.parametrize("state", sorted(S))
def test_inv_13_finished_iff_terminal(state: S) -> None:
    def of(finished: bool) -> list[Line]:
        row: dict[str, Any] = {"finished_at": T0 if finished else None}
        return found(inv.states_known, tasks=[task(state, **row)], attempts=[attempt(state, **row)])

    never = [] if state in ATTEMPT_STATES else [(A1, f"an attempt is never {state.name}")]
    is_terminal = state in TERMINAL
    assert of(is_terminal) == never
    text = f"{state.name}, finished {None if is_terminal else T0}"
    assert of(not is_terminal) == [*never, (A1, text), ("task 3", text)]


def test_inv_14_at_most_once_task_has_one_container() -> None:
    def of(at_most_once: bool, *held: object) -> list[Line]:
        groups = [group(at_most_once=at_most_once)]
        return found(inv.at_most_once_kept, tasks=[task()], groups=groups, attempts=held)

    wrong = [("task 3", "attempt 1 had a container, and another one followed")]
    ran, made = released(F, started_at=at(2)), released(F, container_id="c")
    assert of(True, released(F), attempt(number=2, started_at=at(3), container_id="c")) == []
    assert of(True, ran, attempt(number=2)) == wrong
    assert of(True, made, attempt(number=2)) == wrong
    assert of(True, ran) == []
    assert of(False, ran, attempt(number=2)) == []
    others = [released(F, 7, task_id=9, started_at=at(2)), attempt(number=8, task_id=9)]
    assert of(True, *others, ran, attempt(number=2)) == wrong
    # Rows that are not whole are the business of INV-12.
    assert found(inv.at_most_once_kept, attempts=[ran, attempt(number=2)]) == []
    assert found(inv.at_most_once_kept, tasks=[task()], attempts=[ran, attempt(number=2)]) == []


def test_inv_15_strict_attempt_is_not_released_by_a_loss() -> None:
    def of(exclusive: str, kind: str) -> list[Line]:
        groups = [group(exclusive=exclusive)]
        held = [released(F, release_kind=kind)]
        return found(inv.strict_not_lost, groups=groups, attempts=held)

    assert of("strict", "cell_lost") == [(A1, "strictly exclusive, but released by a loss")]
    for exclusive, kind in (("strict", "confirmed"), ("lease", "cell_lost"), ("", "cell_lost")):
        assert of(exclusive, kind) == []
    assert found(inv.strict_not_lost, attempts=[released(F, release_kind="cell_lost")]) == []


def test_inv_16_a_rule_decides_on_failures_and_a_failing_one_on_the_task() -> None:
    rules = '[{"do": "retry", "codes": [75]}, {"do": "fail", "reason": "out_of_memory"}]'

    def of(state: S, *ruled: object) -> list[Line]:
        row = task(state, attempt_uid=uid(len(ruled)))
        groups = [group(retry_rules=rules)]
        return found(inv.ruled_by_a_rule, groups=groups, tasks=[row], attempts=ruled)

    oom: dict[str, Any] = {"reason": "out_of_memory", "retry_rule": 2}
    assert of(P, released(F, retry_rule=1)) == []
    assert of(F, released(F, retry_rule=1), released(F, 2, **oom)) == []
    assert of(P, released(F)) == []
    assert of(P, released(F, retry_rule=3)) == [(A1, "FAILED by rule 3 of 2")]
    assert of(K, released(K, retry_rule=1)) == [(A1, "KILLED by rule 1 of 2")]
    other = {**oom, "reason": "exit_status"}
    text = "rule 2 is about out_of_memory, not exit_status"
    assert of(F, released(F, **other)) == [(A1, text)]
    assert of(P, released(F, **oom)) == [(A1, "rule 2 fails its task, which is PENDING")]
    after = of(F, released(F, **oom), released(F, 2))
    assert after == [(A1, "rule 2 fails its task, which is FAILED")]


def test_only_rules_that_increase_resources_give_a_request_of_its_own() -> None:
    rules = '[{"do": "retry", "codes": [75], "resources": {"memory_mib": {"percent": 200}}}]'
    own = '{"cpu_millis": 100, "memory_mib": 128}'
    plain = {"resources": '{"cpu_millis": 100, "memory_mib": 64}', "shape_id": 1}

    def of(row: object, *attempts: object, stored: str | None = rules) -> list[Line]:
        groups = [group(retry_rules=stored, **plain)]
        return found(inv.grown_by_a_rule, groups=groups, tasks=[row], attempts=attempts)

    assert of(task(P, shape_id=1), released(F)) == []
    assert of(task(P, shape_id=2, resources=own), released(F, resources=own)) == []
    no_rule = "has its own request, but no rule increases it"
    for stored in (None, '[{"do": "retry", "codes": [75]}]'):
        assert of(task(P, shape_id=1), released(F, resources=own), stored=stored) == [(A1, no_rule)]
    [(_, text)] = of(task(P, shape_id=2))
    assert text == "has only its own shape, not both"
    [(_, text)] = of(task(P, shape_id=1, resources=own))
    assert text == "has only its own request, not both"
    lower = '{"cpu_millis": 100, "memory_mib": 32}'
    [(where, text)] = of(task(P, shape_id=1), released(F, resources=lower))
    assert where == A1
    assert text.startswith("requests {'cpu_millis': 100, 'memory_mib': 32}, below")
