"""Retry rules: the first match decides on a failure, within the budget; the history shows it."""

from dataclasses import replace
from typing import Any, get_args

import pytest

from controlplane.contract.states import FailureKind
from controlplane.contract.states import TaskState as S
from controlplane.domain.cells.reports import decide_report
from controlplane.domain.convergence.task_rules import STUCK_BUILDS
from controlplane.domain.state.effects import ChangeTask
from controlplane.domain.state.facts import TaskFacts
from controlplane.domain.state.retry_rules import (
    RULED_REASONS,
    MatchedRule,
    RetryRule,
    match_rule,
    read_rules,
)
from controlplane.domain.state.states import Reason, RetryAction, RetryBudget
from controlplane.domain.state.transitions import Counters, RetryLimits
from controlplane.spec.parts import RuledReason
from tests.harness.domain.facts import NOW, SENDER, attempt, report, task

RETRY, FAIL = RetryAction.RETRY, RetryAction.FAIL
ANY_EXIT = RetryRule(FAIL, reason=Reason.EXIT_STATUS)


def on_codes(action: RetryAction, *codes: int) -> RetryRule:
    return RetryRule(action, frozenset(codes))


def facts_with(*rules: RetryRule, state: S = S.RUNNING, **more: Any) -> TaskFacts:
    """Return a task with three retries after failures, unless `limits` are others."""
    more.setdefault("limits", RetryLimits(failure=3))
    return replace(task(state, attempt(state), **more), retry_rules=rules)


def decided(facts: TaskFacts, **reported: Any) -> ChangeTask:
    """Return the change by a report that the attempt FAILED."""
    change = decide_report(facts, report(S.FAILED, gone=True, **reported), SENDER, now=NOW)
    assert isinstance(change, ChangeTask)
    return change


def exits(code: int, facts: TaskFacts) -> ChangeTask:
    return decided(facts, exit_code=code, reason="exit", message=f"exit status {code}")


def rule_number(change: ChangeTask) -> int | None:
    assert change.attempt is not None
    return change.attempt.retry_rule


# --------------------------------------------------------------------------- which rule


@pytest.mark.parametrize(
    ("reason", "code", "number"),
    [
        (Reason.EXIT_STATUS, 75, 1),
        (Reason.EXIT_STATUS, 76, 1),
        (Reason.OUT_OF_MEMORY, 75, 1),
        (Reason.OUT_OF_MEMORY, 137, 2),
        (Reason.EXIT_STATUS, 137, 3),
        (Reason.IMAGE_ERROR, None, None),
        (Reason.EXIT_STATUS, 1, None),
    ],
)
def test_first_rule_whose_conditions_all_hold_matches(
    reason: Reason, code: int | None, number: int | None
) -> None:
    rules = (
        on_codes(RETRY, 75, 76),
        RetryRule(RETRY, reason=Reason.OUT_OF_MEMORY),
        RetryRule(FAIL, frozenset({137}), Reason.EXIT_STATUS),
        on_codes(FAIL, 75, 137),
    )
    matched = match_rule(rules, reason, code)
    assert (matched and matched.number) == number


def test_stored_rules_are_read_as_they_were() -> None:
    rules = (on_codes(RETRY, 75, 3), ANY_EXIT, RetryRule(FAIL, frozenset({1}), Reason.USER_ERROR))
    assert read_rules([rule.as_dict() for rule in rules]) == rules


def test_a_document_has_the_reasons_of_the_domain() -> None:
    assert get_args(RuledReason) == tuple(reason.value for reason in RULED_REASONS)


# --------------------------------------------------------------------------- failures of the task


def test_failure_without_a_match_is_retried_as_without_rules() -> None:
    with_rules, without = exits(1, facts_with(on_codes(FAIL, 2))), exits(1, facts_with())
    assert with_rules == without
    assert with_rules.task_to is S.PENDING
    assert rule_number(with_rules) is None


def test_fail_rule_ends_the_task_although_retries_are_left() -> None:
    change = exits(2, facts_with(on_codes(RETRY, 75), on_codes(FAIL, 2)))
    assert (change.task_to, rule_number(change)) == (S.FAILED, 2)
    assert change.counters == Counters(failure=1)
    assert change.failure_reason == "exit status 2 (not retried: rule 2 of on_exit)"
    assert change.steps[-1].message == "exit status 2: rule 2 of on_exit fails the task"


def test_retry_rule_retries_and_charges_the_failure_budget_once() -> None:
    change = exits(75, facts_with(on_codes(RETRY, 75), ANY_EXIT))
    assert (change.task_to, rule_number(change)) == (S.PENDING, 1)
    assert change.attempt is not None
    assert (change.attempt.charged, change.attempt.charge) == (RetryBudget.FAILURE, 1)
    assert change.counters == Counters(failure=1)
    assert change.steps[-1].message == "exit status 75: rule 1 of on_exit retries the task"
    assert change.attempt.message == "exit status 75"
    assert change.not_before is not None


def test_retry_rule_never_exceeds_the_failure_budget() -> None:
    facts = facts_with(on_codes(RETRY, 75), counters=Counters(failure=3))
    change = exits(75, facts)
    assert (change.task_to, rule_number(change)) == (S.FAILED, 1)
    assert change.failure_reason == "exit status 75"
    message = "exit status 75: rule 1 of on_exit retries, but no retry is left"
    assert change.steps[-1].message == message


def test_retry_rule_retries_a_permanent_failure_on_another_cell() -> None:
    image: dict[str, Any] = {"failure_kind": FailureKind.USER, "reason": "image"}
    assert decided(facts_with(), **image).task_to is S.FAILED
    change = decided(facts_with(RetryRule(RETRY, reason=Reason.IMAGE_ERROR)), **image)
    assert (change.task_to, change.avoid_cell_ids) == (S.PENDING, (5,))
    assert change.counters == Counters(failure=1)


def test_retry_rule_does_not_override_a_final_failure_of_a_runner() -> None:
    facts = facts_with(RetryRule(RETRY, reason=Reason.USER_ERROR))
    change = decided(facts, failure_kind=FailureKind.USER, reason="runner_final")
    assert (change.task_to, rule_number(change)) == (S.FAILED, None)


@pytest.mark.parametrize("reason", ["oom", "exit", "command", "disk_limit", "inputs"])
def test_reasons_of_reports_are_those_of_rules(reason: str) -> None:
    names = {"oom": "out_of_memory", "exit": "exit_status", "command": "command_error"}
    rule = RetryRule(FAIL, reason=Reason(names.get(reason, "user_error")))
    change = decided(facts_with(rule), reason=reason, failure_kind=FailureKind.USER)
    assert (change.task_to, rule_number(change)) == (S.FAILED, 1)


# ----------------------------------------------------------------------------- system failures

SYSTEM: dict[str, Any] = {"failure_kind": FailureKind.SYSTEM, "reason": "engine"}
ON_SYSTEM = RetryRule(RETRY, reason=Reason.SYSTEM_FAILURE)


def test_fail_rule_ends_the_task_with_its_first_system_failure() -> None:
    change = decided(facts_with(RetryRule(FAIL, reason=Reason.SYSTEM_FAILURE)), **SYSTEM)
    assert (change.task_to, rule_number(change)) == (S.FAILED, 1)
    assert change.attempt is not None
    assert change.attempt.charged is RetryBudget.SYSTEM


def test_system_budget_pays_first_and_the_failure_budget_then() -> None:
    first = decided(facts_with(ON_SYSTEM, state=S.BUILDING), **SYSTEM)
    assert (first.task_to, first.counters) == (S.PENDING, Counters(system=1, system_row=1))
    used = Counters(system=3, system_row=3)
    change = decided(facts_with(ON_SYSTEM, state=S.BUILDING, counters=used), **SYSTEM)
    assert (change.task_to, change.counters) == (S.PENDING, replace(used, failure=1))
    assert change.attempt is not None
    assert change.attempt.charged is RetryBudget.FAILURE
    assert change.attempt.failure_kind is FailureKind.SYSTEM
    assert change.avoid_cell_ids == (5,)
    last = decided(
        facts_with(ON_SYSTEM, state=S.BUILDING, counters=replace(used, failure=3)), **SYSTEM
    )
    assert (last.task_to, last.failure_reason) == (
        S.FAILED,
        "the cell's engine, registry or disk failed",
    )
    assert last.attempt is not None
    assert last.attempt.charged is RetryBudget.SYSTEM


def test_stuck_build_has_the_rules_of_its_reason() -> None:

    used = Counters(system=3, system_row=3)
    ruled = RetryRule(RETRY, reason=Reason.BUILD_TIMEOUT)
    change = STUCK_BUILDS.decide(facts_with(ruled, state=S.BUILDING, counters=used), now=NOW)
    assert (change.task_to, rule_number(change)) == (S.PENDING, 1)
    assert change.attempt is not None
    assert change.attempt.failure_kind is FailureKind.SYSTEM


# --------------------------------------------------------------------------- what has no rules


@pytest.mark.parametrize(
    "reported",
    [
        {"state": S.FAILED, "failure_kind": FailureKind.OUTSIDE, "exit_code": 137},
        {"state": S.FAILED, "failure_kind": FailureKind.OUTSIDE, "reason": "killed_outside"},
        {"state": S.KILLED, "reason": "timeout", "exit_code": 137},
        {"state": S.PREEMPTED, "exit_code": 137},
        {"state": S.WORKER_FAILED, "reason": "vanished"},
        {"state": S.SUCCEEDED, "exit_code": 0},
    ],
)
def test_rules_apply_to_no_other_end(reported: dict[str, Any]) -> None:
    always = [RetryRule(FAIL, reason=reason) for reason in RULED_REASONS]
    facts = facts_with(on_codes(FAIL, 137), *always)
    change = decide_report(facts, report(gone=True, **reported), SENDER, now=NOW)
    plain = decide_report(facts_with(), report(gone=True, **reported), SENDER, now=NOW)
    assert change == plain


def test_a_late_report_about_an_ended_attempt_matches_no_rule() -> None:
    facts = facts_with(on_codes(RETRY, 75))
    ended = replace(facts, state=S.KILLED, attempt=attempt(S.KILLED))
    change = exits(75, ended)
    assert (change.task_to, rule_number(change)) == (S.KILLED, None)


def test_effects_are_described_in_words() -> None:
    assert MatchedRule(3, FAIL).describe(is_retried=False) == "rule 3 of on_exit fails the task"
