"""Growth of resources by retry rules: each failure, bounded, and refused if nothing can fit it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from controlplane.contract.states import FailureKind
from controlplane.contract.states import TaskState as S
from controlplane.domain.state.effects import ChangeTask
from controlplane.domain.state.facts import TaskFacts
from controlplane.domain.state.growth import (
    GrowthRoom,
    ResourceGrowth,
    foresee,
    grow,
)
from controlplane.domain.state.retry_rules import RetryRule, read_rules
from controlplane.domain.state.states import Reason, RetryAction
from controlplane.domain.state.transitions import Counters, RetryLimits
from controlplane.spec.parts import GROWABLE_REASONS
from tests.harness.domain.facts import attempt, task
from tests.unit.domain.state.test_retry_rules import decided, exits

HALF = {"cpu_millis": 500, "memory_mib": 512}
TWICE = ResourceGrowth("memory_mib", percent=200)


def on_oom(*growth: ResourceGrowth) -> RetryRule:
    return RetryRule(RetryAction.RETRY, reason=Reason.OUT_OF_MEMORY, growth=growth)


def facts_of(
    *rules: RetryRule,
    resources: Mapping[str, int] = HALF,
    room: GrowthRoom | None = None,
    failures: int = 0,
) -> TaskFacts:
    """Return a RUNNING task with three retries after failures, `failures` of which are used."""
    facts = task(
        S.RUNNING,
        attempt(S.RUNNING),
        limits=RetryLimits(failure=3),
        counters=Counters(failure=failures),
    )
    return replace(facts, retry_rules=rules, resources=resources, room=room)


def out_of_memory(facts: TaskFacts) -> ChangeTask:
    reported: dict[str, Any] = {"exit_code": 137, "failure_kind": FailureKind.USER}
    return decided(facts, reason="oom", message="out of memory", **reported)


def test_a_factor_multiplies_each_time_the_rule_applies() -> None:
    resources, found = HALF, []
    for _ in range(3):
        change = out_of_memory(facts_of(on_oom(TWICE), resources=resources))
        assert change.resources is not None
        resources = dict(change.resources)
        found.append(resources)
    assert [item["memory_mib"] for item in found] == [1024, 2048, 4096]
    assert {item["cpu_millis"] for item in found} == {500}


@pytest.mark.parametrize(
    ("before", "percent", "after"), [(100, 150, 150), (101, 150, 152), (7, 101, 8), (3, 133, 4)]
)
def test_fractions_are_rounded_up(before: int, percent: int, after: int) -> None:
    growth = ResourceGrowth("memory_mib", percent=percent)
    assert growth.grow(before) == after


def test_a_factor_stops_at_its_maximum() -> None:
    growth = replace(TWICE, most=1500)
    assert [growth.grow(amount) for amount in (512, 1024, 1500)] == [1024, 1500, 1500]


def test_an_amount_is_set_and_never_lowers_a_request() -> None:
    growth = ResourceGrowth("memory_mib", amount=4096)
    assert [growth.grow(amount) for amount in (512, 4096, 8192)] == [4096, 4096, 8192]


def test_an_amount_of_a_resource_that_was_not_requested_is_added() -> None:
    change = out_of_memory(facts_of(on_oom(ResourceGrowth("disk_mib", amount=100))))
    assert change.resources == {**HALF, "disk_mib": 100}


def test_history_has_the_growth() -> None:
    rule = on_oom(TWICE, ResourceGrowth("cpu_millis", percent=150))
    change = out_of_memory(facts_of(RetryRule(RetryAction.FAIL, frozenset({2})), rule))
    assert change.task_to is S.PENDING
    assert change.steps[-1].message == (
        "out of memory: rule 2 of on_exit retries the task: memory 512Mi -> 1Gi, cpu 0.5 -> 0.75"
    )


def test_history_has_the_maximum_that_is_reached() -> None:
    change = out_of_memory(facts_of(on_oom(replace(TWICE, most=512))))
    assert (change.task_to, change.resources) == (S.PENDING, None)
    assert change.steps[-1].message == (
        "out of memory: rule 1 of on_exit retries the task: memory stays at its maximum, 512Mi"
    )


def test_nothing_grows_without_a_retry() -> None:
    change = out_of_memory(facts_of(on_oom(TWICE), failures=3))
    assert (change.task_to, change.resources) == (S.FAILED, None)
    text = "out of memory: rule 1 of on_exit retries, but no retry is left"
    assert change.steps[-1].message == text


def test_other_ends_of_a_task_with_growth_change_no_request() -> None:
    facts = facts_of(on_oom(TWICE))
    assert exits(1, facts).resources is None
    lost = decided(facts, failure_kind=FailureKind.OUTSIDE, reason="killed_outside", exit_code=137)
    assert (lost.task_to, lost.resources) == (S.PENDING, None)


def test_a_system_failure_that_matches_the_codes_changes_no_request() -> None:
    rule = RetryRule(RetryAction.RETRY, frozenset({137}), growth=(TWICE,))
    change = decided(
        facts_of(rule), failure_kind=FailureKind.SYSTEM, reason="engine", exit_code=137
    )
    assert (change.task_to, change.resources) == (S.PENDING, None)


def room(*memory: int, **more: Any) -> GrowthRoom:
    """Return the room of a pool whose cells have 4 cores each, and this memory."""
    cells = tuple({"cpu_millis": 4000, "memory_mib": amount} for amount in memory)
    return GrowthRoom("big", cells, **more)


def test_a_request_that_no_cell_can_ever_fit_fails_the_task_at_once() -> None:
    change = out_of_memory(facts_of(on_oom(TWICE), room=room(512, 1000)))
    assert (change.task_to, change.resources) == (S.FAILED, None)
    assert change.counters == Counters(failure=1)
    assert change.failure_reason.endswith(
        "(not retried: rule 1 of on_exit increases memory to 1Gi, and no cell of pool big that"
        " may run the task has more than 1000Mi; max_resources of the rule bounds its growth)"
    )
    assert "increases memory to 1Gi" in change.steps[-1].message


def test_no_text_recommends_a_maximum_for_an_amount() -> None:
    """Submission refuses `max_resources` of an amount."""
    to_two = ResourceGrowth("memory_mib", amount=2048)
    change = out_of_memory(facts_of(on_oom(to_two), room=room(1000)))
    assert change.failure_reason.endswith(
        "(not retried: rule 1 of on_exit increases memory to 2Gi, and no cell of pool big that"
        " may run the task has more than 1000Mi)"
    )


def test_a_request_that_one_cell_can_fit_is_retried() -> None:
    change = out_of_memory(facts_of(on_oom(TWICE), room=room(512, 1024)))
    assert (change.task_to, change.resources) == (S.PENDING, {**HALF, "memory_mib": 1024})


def test_a_pool_without_a_cell_for_the_task_refuses_nothing() -> None:
    assert out_of_memory(facts_of(on_oom(TWICE), room=room())).task_to is S.PENDING


def test_amounts_that_no_cell_has_together_fail_the_task() -> None:
    cells = ({"cpu_millis": 500, "memory_mib": 4096}, {"cpu_millis": 4000, "memory_mib": 512})
    rule = on_oom(TWICE, ResourceGrowth("cpu_millis", percent=200))
    change = out_of_memory(facts_of(rule, room=GrowthRoom("big", cells)))
    assert change.task_to is S.FAILED
    text = "no cell of pool big that may run the task has cpu 1 and memory 1Gi together"
    assert text in change.failure_reason


def test_a_quota_below_the_request_fails_the_task() -> None:
    limited = room(4096, limits=(("user ann", "memory_mib", 1000),))
    change = out_of_memory(facts_of(on_oom(TWICE), room=limited))
    assert change.task_to is S.FAILED
    text = "increases memory to 1Gi, and the quota of user ann has 1000Mi"
    assert text in change.failure_reason


def test_stored_growth_is_read_as_it_was() -> None:
    rules = (
        on_oom(TWICE, ResourceGrowth("cpu_millis", amount=2000)),
        RetryRule(RetryAction.RETRY, frozenset({3}), growth=(replace(TWICE, most=9),)),
    )
    assert read_rules([rule.as_dict() for rule in rules]) == rules
    assert rules[0].as_dict()["resources"] == {
        "memory_mib": {"percent": 200},
        "cpu_millis": {"amount": 2000},
    }


def test_requests_stay_within_the_amounts_of_a_document() -> None:
    cpu, memory = ResourceGrowth("cpu_millis", percent=1600), replace(TWICE, percent=1600)
    assert [item.grow(90_000_000) for item in (cpu, memory)] == [100_000_000, 1 << 30]
    assert [item.grow(1_000_000_000) for item in (cpu, memory)] == [1_000_000_000, 1 << 30]


def test_growth_is_described_in_words() -> None:
    found = [
        TWICE.describe(),
        ResourceGrowth("cpu_millis", percent=150, most=4500).describe(),
        ResourceGrowth("disk_mib", amount=2048).describe(),
    ]
    assert found == ["memory 2x", "cpu 1.5x, at most 4.5", "disk to 2Gi"]


def test_growth_from_nothing_is_shown_from_zero() -> None:
    grown = grow([ResourceGrowth("disk_mib", amount=1)], HALF, None)
    assert (grown.resources, grown.text) == ({**HALF, "disk_mib": 1}, "disk 0Mi -> 1Mi")
    assert grow([replace(TWICE, name="disk_mib")], HALF, None).resources is None


LIMIT = ("user ann", "memory_mib", 1024)


@pytest.mark.parametrize(
    ("limits", "refusal"),
    [
        ([LIMIT], ""),
        ([("user ann", "memory_mib", 1023)], "the quota of user ann has 1023Mi"),
        ([("user ann", "cpu_millis", 100)], ""),
        ([("user ann", "gpu", 0)], ""),
    ],
)
def test_quotas_bound_what_has_grown(limits: list[tuple[str, str, int]], refusal: str) -> None:
    request = {"cpu_millis": 500, "memory_mib": 1024}
    assert room(1024, limits=limits).refuse(request, ["memory_mib"]) == refusal


def test_cells_without_a_resource_fit_no_request_of_it() -> None:
    which = "no cell of pool big that may run the task has"
    request = {**HALF, "disk_mib": 1}
    assert room(1024).refuse(request, ["disk_mib"]) == f"{which} more than 0Mi"
    assert room(1024).refuse({**HALF, "gpu": 1}, ["memory_mib"]) == (
        f"{which} cpu 0.5 and gpu 1 and memory 512Mi together"
    )
    assert GrowthRoom("big", ({**HALF, "disk_mib": 1},)).refuse(request, ["disk_mib"]) == ""


@pytest.mark.parametrize(
    ("growth", "retries", "memory", "is_refused"),
    [
        (TWICE, 0, [], False),
        (TWICE, 2, [1024, 2048], False),
        (TWICE, 9, [1024, 2048], True),
        (replace(TWICE, most=1500), 9, [1024, 1500], False),
        (ResourceGrowth("memory_mib", amount=600), 9, [600], False),
        (ResourceGrowth("memory_mib", amount=9000), 9, [], True),
    ],
)
def test_growth_is_foreseen_until_it_ends(
    growth: ResourceGrowth, retries: int, memory: list[int], is_refused: bool
) -> None:
    requests, refusal = foresee([growth], HALF, room(3000), retries=retries)
    assert [item["memory_mib"] for item in requests] == memory
    assert bool(refusal) == is_refused


def test_only_failures_of_the_program_grow() -> None:
    assert {*map(Reason, GROWABLE_REASONS)} == {
        Reason.EXIT_STATUS,
        Reason.OUT_OF_MEMORY,
        Reason.USER_ERROR,
    }


def test_the_resource_that_lacks_is_named() -> None:
    request = {"cpu_millis": 4000, "memory_mib": 2048}
    text = room(1024).refuse(request, ["cpu_millis", "memory_mib"])
    assert text == "no cell of pool big that may run the task has more than 1Gi"
    assert room(1024).refuse({**HALF, "disk_mib": 0}, ["memory_mib"]) == ""
