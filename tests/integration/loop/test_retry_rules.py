"""Retry rules in the loop: once for each attempt, for failures alone, shown by history and API."""

from typing import Any

from controlplane import clock
from controlplane.commands.jobs.rerun import retry_job
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Job, Task, TaskGroup, Transition
from controlplane.queries.integrity.invariants import check_all
from controlplane.queries.views.attempts import get_attempt
from controlplane.queries.views.tasks import get_task
from tests.integration.loop.conftest import FakeCell, Loop
from tests.integration.loop.test_gangs import gang

RULES: list[dict[str, Any]] = [
    {"codes": [75], "do": "retry"},
    {"codes": [2], "do": "fail"},
    {"reason": "oom", "do": "retry"},
    {"reason": "exit_status", "do": "fail"},
]


def ruled(loop: Loop, rules: list[dict[str, Any]] | None = None, **more: Any) -> Job:
    more.setdefault("retries", {"failure": 3})
    return loop.submit(on_exit=RULES if rules is None else rules, **more)


def exits(cell: FakeCell, attempt: Attempt, code: int, **more: Any) -> None:
    text = f"exit status {code}"
    cell.end(attempt, S.FAILED, exit_code=code, reason="exit", message=text, **more)


def place_again(loop: Loop, job: Job) -> Attempt:
    """Place the job's waiting tasks without their back-off, and return the newest attempt."""
    Task.objects.filter(job=job, not_before__isnull=False).update(not_before=clock.now())
    loop.place()
    return Attempt.objects.filter(job=job).latest("number")


def messages(job: Job) -> list[str]:
    found = Transition.objects.filter(job_id=job.pk, task_id__isnull=False).order_by("id")
    return [row.message for row in found if "on_exit" in row.message]


def rules_of(job: Job) -> list[tuple[int | None, str]]:
    """Return the deciding rule and the charged budget of each attempt."""
    found = Attempt.objects.filter(job=job).order_by("task_id", "number")
    return [(attempt.retry_rule, attempt.charged) for attempt in found]


def test_rules_of_a_group_decide_on_each_end(loop: Loop) -> None:
    cell = loop.cell()
    job = ruled(loop)
    loop.place()
    exits(cell, loop.attempts(job)[0], 75)
    assert loop.states(job) == ["PENDING"]
    oom = place_again(loop, job)
    cell.end(oom, S.FAILED, exit_code=137, failure_kind="user", reason="oom", message="no memory")
    assert loop.states(job) == ["PENDING"]
    exits(cell, place_again(loop, job), 2)
    assert (loop.states(job), loop.state(job)) == (["FAILED"], "FAILED")
    assert rules_of(job) == [(1, "failure"), (3, "failure"), (2, "failure")]
    assert messages(job) == [
        "exit status 75: rule 1 of on_exit retries the task",
        "no memory: rule 3 of on_exit retries the task",
        "exit status 2: rule 2 of on_exit fails the task",
    ]
    assert check_all() == []


def test_a_retry_rule_makes_no_more_attempts_than_the_budget(loop: Loop) -> None:
    cell = loop.cell()
    job = ruled(loop, retries={"failure": 2})
    for _ in range(3):
        exits(cell, place_again(loop, job), 75)
    assert (loop.states(job), len(loop.attempts(job))) == (["FAILED"], 3)
    assert messages(job)[-1] == "exit status 75: rule 1 of on_exit retries, but no retry is left"
    assert check_all() == []


def test_without_a_match_the_budgets_decide(loop: Loop) -> None:
    cell = loop.cell()
    job = ruled(loop, RULES[:2])
    exits(cell, place_again(loop, job), 1)
    assert (loop.states(job), rules_of(job)) == (["PENDING"], [(None, "failure")])
    assert messages(job) == []


def test_api_shows_the_rule_of_task_and_attempt(loop: Loop) -> None:
    cell = loop.cell()
    job = ruled(loop)
    attempt = place_again(loop, job)
    assert get_task(loop.tasks(job)[0].pk, now=clock.now())["retry_rule"] is None
    exits(cell, attempt, 9)
    task = get_task(loop.tasks(job)[0].pk, now=clock.now())
    assert (task["state"], task["retry_rule"]) == ("FAILED", 4)
    assert task["failure_reason"] == "exit status 9 (not retried: rule 4 of on_exit)"
    shown = get_attempt(attempt.uid)
    assert (shown["retry_rule"], shown["failure_reason"]) == (4, "exit status 9")


def test_pending_reason_names_the_rule_that_retries(loop: Loop) -> None:
    cell = loop.cell()
    job = ruled(loop)
    exits(cell, place_again(loop, job), 75)
    task = get_task(loop.tasks(job)[0].pk, now=clock.now())
    assert task["pending_reason"]["code"] == "backing_off"
    text = "before it is tried again (retried by rule 1 of on_exit)"
    assert task["pending_reason"]["text"].endswith(text)


def test_doubled_and_late_reports_decide_once(loop: Loop) -> None:
    cell = loop.cell()
    job = ruled(loop)
    loop.place()
    (attempt,) = loop.attempts(job)
    end = AttemptReport(
        str(attempt.uid), 0, S.FAILED, exit_code=75, reason="exit", message="exit status 75"
    )
    cell.report(end)  # the container is not gone yet
    cell.report(end, end)
    exits(cell, attempt, 2)  # another end of the same attempt
    exits(cell, attempt, 2)
    assert (loop.states(job), rules_of(job)) == (["PENDING"], [(1, "failure")])
    assert len(messages(job)) == 1
    exits(cell, place_again(loop, job), 75)
    exits(cell, attempt, 2)  # of the first attempt, after the second
    assert (loop.states(job), rules_of(job)) == (["PENDING"], [(1, "failure")] * 2)
    assert Task.objects.get(job=job).failure_count == 2
    assert check_all() == []


def test_a_kill_from_outside_matches_no_rule(loop: Loop) -> None:
    cell = loop.cell()
    always = [{"reason": reason, "do": "fail"} for reason in ("exit_status", "system_failure")]
    job = ruled(loop, [*always, {"codes": list(range(100, 138)), "do": "fail"}])
    loop.place()
    (attempt,) = loop.attempts(job)
    cell.report(AttemptReport(str(attempt.uid), 0, S.RUNNING, started_at=1.0))
    cell.end(attempt, S.FAILED, exit_code=137, failure_kind="outside", reason="killed_outside")
    assert (loop.states(job), rules_of(job)) == (["PENDING"], [(None, "preemption")])
    assert messages(job) == []
    assert check_all() == []


def test_a_rule_decides_for_a_member_and_the_gang_follows_its_own_rules(loop: Loop) -> None:
    cell = loop.cell()
    job = gang(loop, on_exit=RULES, retries={"failure": 5})
    loop.place()
    first, *others = loop.attempts(job)
    exits(cell, first, 75, started_at=1.0)
    loop.converge()
    assert loop.states(job) == ["PENDING"] * 3
    for other in others:
        cell.end(other, S.KILLED)
    place_again(loop, job)
    assert loop.states(job) == ["ASSIGNED"] * 3
    first = Attempt.objects.get(task_id=first.task_id, number=2)
    exits(cell, first, 2, started_at=1.0)
    loop.converge()
    assert loop.states(job) == ["FAILED", "WORKER_FAILED", "WORKER_FAILED"]
    numbers = dict(Attempt.objects.filter(retry_rule__gt=0).values_list("number", "retry_rule"))
    assert numbers == {1: 1, 2: 2}
    assert check_all() == []


def test_failed_tasks_count_for_the_failures_of_the_job(loop: Loop) -> None:
    cell = loop.cell()
    job = ruled(loop, replicas=3, max_task_failures=1)
    loop.place()
    one, two, three = loop.attempts(job)
    exits(cell, one, 2)
    assert loop.state(job) in ("PENDING", "RUNNING")
    exits(cell, two, 2)
    loop.converge()
    cell.end(three, S.KILLED)
    assert loop.state(job) == "FAILED"


def test_a_rerun_of_the_job_has_its_rules(loop: Loop) -> None:
    cell = loop.cell()
    job = ruled(loop)
    exits(cell, place_again(loop, job), 2)
    again = Job.objects.get(
        pk=retry_job(job_id=job.pk, guid=None, actor="owner", now=clock.now()).job_id
    )
    stored = [TaskGroup.objects.get(job=item).retry_rules for item in (job, again)]
    assert stored[0] == stored[1]
    assert stored[0][0] == {"codes": [75], "do": "retry"}
    exits(cell, place_again(loop, again), 2)
    assert (loop.states(again), rules_of(again)) == (["FAILED"], [(2, "failure")])
