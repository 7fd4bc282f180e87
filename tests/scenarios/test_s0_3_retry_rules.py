"""S0.3: retry rules of a group: the first match decides on a failure, within the budgets."""

from typing import Any

import pytest

from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Job, Transition
from tests.scenarios.cells import LiveStage, RealCell
from tests.scenarios.stage import Stage

RULES: list[dict[str, Any]] = [
    {"codes": [75], "do": "retry"},
    {"codes": [2], "do": "fail"},
    {"reason": "oom", "do": "retry"},
]
ALWAYS_FAIL: list[dict[str, Any]] = [
    {"codes": [137, 143], "do": "fail"},
    *({"reason": reason, "do": "fail"} for reason in ("exit_status", "system_failure", "oom")),
]


def messages(job: Job) -> list[str]:
    """Return the rows of the history that name a rule."""
    found = Transition.objects.filter(job_id=job.pk, message__contains="on_exit").order_by("id")
    return [row.message for row in found]


def decisions(job: Job) -> list[tuple[int | None, str]]:
    """Return the deciding rule and the charged budget of each attempt."""
    found = Attempt.objects.filter(job=job).order_by("number")
    return [(attempt.retry_rule, attempt.charged) for attempt in found]


def test_first_matching_rule_decides_on_each_failure(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.running(on_exit=RULES, retries={"failure": 5})
    stage.end(attempt, S.FAILED, exit_code=75)
    stage.wait(300)
    stage.place()
    stage.end(stage.last(job), S.FAILED, exit_code=137, failure_kind="user", reason="oom")
    stage.wait(300)
    stage.place()
    stage.end(stage.last(job), S.FAILED, exit_code=2)
    assert (stage.states(job), stage.state(job)) == (["FAILED"], "FAILED")
    assert decisions(job) == [(1, "failure"), (3, "failure"), (2, "failure")]
    assert stage.counters(job) == (3, 0, 0)
    stage.check()


@pytest.mark.parametrize("limit", [1, 3])
def test_a_rule_makes_no_more_attempts_than_the_failure_budget(stage: Stage, limit: int) -> None:
    stage.cell()
    job, _ = stage.placed(on_exit=RULES, retries={"failure": limit})
    for _ in range(limit):
        stage.end(stage.last(job), S.FAILED, exit_code=75)
        assert stage.states(job) == ["PENDING"]
        stage.wait(300)
        stage.place()
    stage.end(stage.last(job), S.FAILED, exit_code=75)
    assert (stage.states(job), stage.counters(job)) == (["FAILED"], (limit + 1, 0, 0))
    stage.check()


def test_a_retry_rule_adds_the_failure_budget_to_that_of_system_failures(stage: Stage) -> None:
    for number in range(5):
        stage.cell(f"cell-{number}")
    rules = [{"reason": "system_failure", "do": "retry"}]
    job, _ = stage.placed(on_exit=rules, retries={"failure": 1, "system": 1})
    for counters in ((0, 0, 1), (1, 0, 1)):
        stage.fail_system(stage.last(job))
        assert (stage.states(job), stage.counters(job)) == (["PENDING"], counters)
        stage.wait(300)
        stage.place()
    stage.fail_system(stage.last(job))
    assert (stage.states(job), stage.counters(job)) == (["FAILED"], (1, 0, 2))
    assert {row.failure_kind for row in stage.attempts(job)} == {"system"}
    assert messages(job)[-1].endswith("rule 1 of on_exit retries, but no retry is left")
    stage.check()


def test_no_rule_applies_to_a_lost_cell(stage: Stage) -> None:
    lost, _ = stage.cell("lost"), stage.wait(1)
    job, _ = stage.running(on_exit=ALWAYS_FAIL)
    stage.cell("other")
    stage.lose(lost)
    assert stage.states(job) == ["PENDING"]
    assert (decisions(job), messages(job)) == ([(None, "preemption")], [])
    stage.place()
    assert stage.states(job) == ["ASSIGNED"]
    stage.check()


def test_no_rule_applies_to_vanished_and_stopped_containers(stage: Stage) -> None:
    stage.cell()
    job, _ = stage.running(on_exit=ALWAYS_FAIL)
    stage.vanish(stage.last(job))
    stage.place()
    stage.end(stage.last(job), S.FAILED, exit_code=137, failure_kind="outside")
    stage.place()
    stage.start(stage.last(job))
    stage.end(stage.last(job), S.PREEMPTED, exit_code=143, reason="drained")
    assert stage.states(job) == ["PENDING"]
    assert decisions(job) == [(None, "preemption"), (None, "preemption"), (None, "")]
    stage.check()


def test_no_rule_applies_to_a_time_limit(stage: Stage) -> None:
    stage.cell()
    rules = [{"codes": [137], "do": "retry"}]
    more: dict[str, Any] = {"timeout_seconds": 10, "retries": {"failure": 3}}
    job, attempt = stage.running(on_exit=rules, **more)
    stage.end(attempt, S.KILLED, exit_code=137, reason="timeout")
    assert (stage.states(job), decisions(job)) == (["KILLED"], [(None, "")])
    stage.check()


@pytest.mark.parametrize(("code", "attempts"), [(75, 3), (2, 1), (9, 3)])
def test_exit_statuses_of_real_processes_are_matched(
    live: LiveStage, process_cell: RealCell, code: int, attempts: int
) -> None:
    job = live.run(process_cell, f"exit {code}", on_exit=RULES, retries={"failure": 2})
    live.until_settled(job)
    numbers = {75: 1, 2: 2, 9: None}
    assert live.states(job) == ["FAILED"]
    assert decisions(job) == [(numbers[code], "failure")] * attempts
    assert live.last(job).message == f"exit status {code}"


def test_a_rule_increases_memory_until_the_program_has_enough(stage: Stage) -> None:
    stage.cell(memory=4096)
    rule = {**RULES[2], "resources": {"memory": "2x"}, "max_resources": {"memory": "200Mi"}}
    job, _ = stage.placed(on_exit=[rule], retries={"failure": 5})
    for _ in range(3):
        stage.end(stage.last(job), S.FAILED, exit_code=137, failure_kind="user", reason="oom")
        stage.wait(300)
        stage.place()
    stage.succeed(stage.last(job))
    assert stage.state(job) == "SUCCEEDED"
    requests = [attempt.resources for attempt in stage.attempts(job)]
    assert [found and found["memory_mib"] for found in requests] == [None, 128, 200, 200]
    assert [text.rpartition(": ")[2] for text in messages(job)] == [
        "memory 64Mi -> 128Mi",
        "memory 128Mi -> 200Mi",
        "memory stays at its maximum, 200Mi",
    ]
    stage.check()


def test_no_rule_increases_a_request_beyond_the_largest_cell(stage: Stage) -> None:
    stage.cell(memory=100)
    rule = {**RULES[2], "resources": {"memory": "2x"}}
    job, attempt = stage.placed(on_exit=[rule], retries={"failure": 5})
    stage.end(attempt, S.FAILED, exit_code=137, failure_kind="user", reason="oom")
    assert (stage.states(job), stage.state(job)) == (["FAILED"], "FAILED")
    text = "increases memory to 128Mi, and no cell of pool default that may run the task has more"
    assert text in stage.task(job).failure_reason
    stage.check()


def test_a_real_program_gets_the_disk_that_a_rule_adds(
    live: LiveStage, process_cell: RealCell
) -> None:
    rule = {"reason": "user_error", "do": "retry", "resources": {"disk": "4x"}}
    script = 'head -c 6000000 /dev/zero > "$CELLRUN_ROOT/file"; sleep 2'
    resources = {"cpu": 0.1, "memory": "64Mi", "disk": "2Mi"}
    more: dict[str, Any] = {"retries": {"failure": 2}, "resources": resources}
    job = live.run(process_cell, script, on_exit=[rule], **more)
    live.until_settled(job)
    assert (live.states(job), decisions(job)) == (["SUCCEEDED"], [(1, "failure"), (None, "")])
    assert live.last(job).resources == {"cpu_millis": 100, "memory_mib": 64, "disk_mib": 8}
