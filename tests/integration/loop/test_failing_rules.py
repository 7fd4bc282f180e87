"""What fails in a tick holds up nothing else: poisoned jobs, locks, sources that cannot be read."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import product

import psycopg
import pytest
from django.db import OperationalError, connection

from controlplane import clock
from controlplane.commands.convergence import job_pages
from controlplane.commands.convergence import jobs as cascades
from controlplane.commands.convergence.late_tasks import EndLateTasks, apply_task_rule
from controlplane.commands.convergence.runner import ConvergenceRule, RuleContext, RuleRunner
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import Phase
from controlplane.contract.states import TaskState as S
from controlplane.domain.convergence.policy import Policy
from controlplane.domain.convergence.task_rules import STUCK_BUILDS, UNANSWERED
from controlplane.domain.state.effects import ChangeTask
from controlplane.domain.state.job_rollup import impossible_groups, newly_startable
from controlplane.domain.state.states import OPEN
from controlplane.models import Alert, Attempt, Job, Task, TaskGroup, TickState, Walk
from controlplane.queries.convergence import due
from controlplane.queries.convergence.due import SOURCES, find_due, list_jobs_with
from controlplane.queries.convergence.late_tasks import find_candidates
from controlplane.queries.convergence.parameters import parameters_of
from controlplane.queries.integrity.invariants import check_all
from controlplane.queries.locks import load_groups, read_jobs
from controlplane.queries.sql import execute, rows
from controlplane.ticks import convergence
from tests.integration.loop.conftest import Loop

SMALL = {"image": "x", "command": ["true"], "resources": {"cpu": 1, "memory": "64Mi"}}
HOUR = timedelta(hours=1)


def unanswered_jobs(loop: Loop, count: int) -> list[Job]:
    """Create jobs whose orders were not answered in time."""
    loop.cell(cpu=16_000)
    jobs = [loop.submit() for _ in range(count)]
    loop.place()
    assert Attempt.objects.update(start_before=clock.now() - HOUR) == count
    return jobs


def failed_rules() -> set[str]:
    found = Alert.objects.filter(kind="rule_failed", cleared_at=None)
    return set(found.values_list("subject", flat=True))


def test_jobs_that_fail_repeatedly_do_not_block_other_jobs(loop: Loop) -> None:
    jobs = unanswered_jobs(loop, 7)
    poisoned = {job.pk for job in jobs[:4]}

    def decide(facts, *, now) -> ChangeTask:
        if facts.job_id in poisoned:
            raise ValueError("poisoned")
        return UNANSWERED.decide(facts, now=now)

    rule = EndLateTasks(replace(UNANSWERED, decide=decide))
    assert rule(RuleContext(clock.now(), Policy(page=2), frozenset())) == {"unanswered": 3}
    assert Alert.objects.filter(kind="job_skipped", cleared_at=None).count() == len(poisoned)
    assert EndLateTasks(UNANSWERED)(RuleContext(clock.now(), Policy(page=2), frozenset())) == {
        "unanswered": 4
    }


def test_report_after_the_query_restarts_the_build_timeout(loop: Loop) -> None:
    cell, job = loop.cell(), loop.submit()
    loop.place()
    [attempt] = loop.attempts(job)
    cell.report(AttemptReport(str(attempt.uid), 0, S.BUILDING, phase=Phase.PULLING))
    Attempt.objects.update(state_since=clock.now() - HOUR)
    context = RuleContext(clock.now(), Policy(), frozenset())
    found = find_candidates("stuck_builds", context.parameters)
    assert [item.uid for item in found] == [attempt.uid]
    cell.report(AttemptReport(str(attempt.uid), 0, S.BUILDING, phase=Phase.CREATING))
    assert apply_task_rule(STUCK_BUILDS, found, context) == 0
    assert loop.states(job) == ["BUILDING"]
    Attempt.objects.update(state_since=clock.now() - HOUR)
    assert apply_task_rule(STUCK_BUILDS, found, context) == 1


@contextmanager
def held(job: Job) -> Iterator[None]:
    """Hold the lock of the job in another session, with a short lock timeout here."""
    settings = connection.settings_dict
    names = {"host": "HOST", "port": "PORT", "dbname": "NAME", "user": "USER"}
    where = {name: settings[key] for name, key in names.items() if settings[key]}
    execute("SET lock_timeout = '50ms'")
    try:
        with psycopg.connect(**where, password=settings["PASSWORD"]) as other:
            other.execute("SELECT FROM controlplane_job WHERE id = %s FOR UPDATE", [job.pk])
            yield
    finally:
        execute("RESET lock_timeout")


def test_locked_job_is_skipped_and_the_tick_continues(loop: Loop) -> None:
    loop.converge()  # the walks over all jobs are not due again
    *others, job = unanswered_jobs(loop, 3)
    parent = loop.submit(name="parent")
    child = loop.submit(name="child", parent=parent.pk)
    cancel_job(job_id=parent.pk, reason="", force=False, actor="me", now=clock.now())
    with held(job):
        counts = loop.converge()
    assert (counts["unanswered"], counts["orphaned"]) == (len(others), 1)
    assert loop.state(child) == "KILLED"
    assert failed_rules() == set()
    skipped = Alert.objects.get(kind="job_skipped", cleared_at=None)
    assert (skipped.subject, skipped.text) == (
        f"unanswered of job {job.pk}",
        "another transaction keeps it locked",
    )
    assert loop.converge()["unanswered"] == 1


def test_lock_and_idle_transaction_timeouts_are_set(loop: Loop) -> None:
    assert rows("SHOW lock_timeout") == [("20s",)]
    assert rows("SHOW idle_in_transaction_session_timeout") == [("15s",)]


def test_unreadable_source_stops_only_the_rule_that_reads_it(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    unanswered_jobs(loop, 1)
    with monkeypatch.context() as patch:
        patch.setattr(due, "SOURCES", {**SOURCES, "images": "FROM controlplane_nothing WHERE true"})
        assert loop.converge()["unanswered"] == 1
    assert failed_rules() == {"rule images"}
    assert "deletion" in TickState.objects.get(name="convergence").phases


def test_tick_ends_when_the_database_connection_is_lost(loop: Loop) -> None:
    def run(context: RuleContext) -> dict[str, int]:
        execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return {}

    rule = ConvergenceRule(1, "gone", (), run, always=True)
    with pytest.raises(OperationalError):
        RuleRunner([rule], clock.now(), Policy()).run()
    connection.close()
    assert failed_rules() == set()


def test_first_tick_holds_without_a_gap_alert(loop: Loop) -> None:
    convergence.run(memory=loop.memory)
    hold_until = TickState.objects.get(name="convergence").hold_until
    assert hold_until is not None
    assert not Alert.objects.filter(kind="control_plane_gap").exists()


# ------------------------------------------------------------------ rule 7


def test_waiting_jobs_do_not_hide_a_job_with_an_impossible_dependency(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_pages, "JOBS_PER_TICK", 3)
    both = [{"group": "a"}, {"group": "b"}]
    groups: list[dict[str, object]] = [{"name": name, **SMALL} for name in "ab"]
    groups.append({"name": "c", "depends_on": both, **SMALL})
    cell = loop.cell(cpu=16_000)
    jobs = [loop.submit(max_task_failures=1, groups=groups) for _ in range(4)]
    loop.place()
    for job in jobs:
        end = S.FAILED if job is jobs[-1] else S.SUCCEEDED
        cell.end(loop.attempts(job)[0], end, exit_code=int(end is S.FAILED))
    assert list_jobs_with("waiting_jobs", 9) == [jobs[-1].pk]
    loop.converge()
    assert loop.states(jobs[-1]) == ["FAILED", "ASSIGNED", "KILLED"]
    assert loop.states(jobs[0]) == ["SUCCEEDED", "ASSIGNED", "PENDING"]
    assert check_all() == []


@pytest.mark.parametrize("until", ["started", "succeeded", "finished"])
def test_statement_finds_exactly_the_impossible_dependencies(loop: Loop, until: str) -> None:
    """Of any states of three tasks, each of which ran at some time or not."""
    groups: list[dict[str, object]] = [
        {"name": "a", "replicas": 3, **SMALL},
        {"name": "b", "depends_on": [{"group": "a", "until": until}], **SMALL},
    ]
    job = loop.submit(groups=groups)
    tasks = list(Task.objects.filter(job=job, group__name="a").order_by("index"))
    seen = set()
    states = (S.RUNNING, S.SUCCEEDED, S.FAILED, S.KILLED)
    lives = list(product((S.PENDING, *states), (False, True)))
    lives.remove((S.RUNNING, False))
    drawn = random.Random(until)
    for _ in range(300):
        given = [drawn.choice(lives) for _ in tasks]
        if drawn.random() < 0.7:
            given = [(state if state not in OPEN else S.FAILED, ran) for state, ran in given]
        minimum, replicas = drawn.randrange(4), drawn.choice((3, 3, 5))
        row = [0] * (max(S) + 1)
        for task, (state, ran) in zip(tasks, given, strict=True):
            row[state] += 1
            ended = None if state in OPEN else clock.now()
            started = clock.now() if ran else None
            changes = {"state": state, "started_at": started, "finished_at": ended}
            is_open = state is S.RUNNING
            Task.objects.filter(pk=task.pk).update(attempt_open=is_open, **changes)
        TaskGroup.objects.filter(job=job, name="a").update(
            counts=row, min_available=minimum, replicas=replicas
        )
        listed = load_groups([job.pk])[job.pk]
        vain = impossible_groups({item.facts.name: item.facts for item in listed})
        case = (minimum, replicas, given)
        assert list_jobs_with("waiting_jobs", 9) == [job.pk] * bool(vain), case
        startable = newly_startable(read_jobs([job.pk])[job.pk], listed, now=clock.now())
        met = [item.group_id for item in startable]
        assert bool(met) == _has_come_true(until, minimum, replicas > 3, given), case
        seen.add((bool(vain), bool(met)))
    assert seen == {(False, False), (False, True)} | (
        set() if until == "finished" else {(True, False)}
    )


def _has_come_true(
    until: str, minimum: int, is_rest: bool, tasks: Sequence[tuple[S, bool]]
) -> bool:
    """Return what the documentation defines for a group of `tasks` in these states."""
    is_over = all(state not in OPEN for state, _ in tasks)
    if until == "finished":
        return is_over
    if until == "succeeded":
        return is_over and sum(state is S.SUCCEEDED for state, _ in tasks) >= minimum
    ran = sum(did_run or state is S.SUCCEEDED for state, did_run in tasks)
    return ran >= minimum and (is_rest or ran > 0)


def test_cascade_over_the_page_limit_continues_in_the_next_tick(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cascades, "PAGES_PER_TICK", 2)
    line = [loop.submit()]
    for _ in range(5):
        line.append(loop.submit(parent=line[-1].pk))
    cancel_job(job_id=line[0].pk, reason="", force=False, actor="me", now=clock.now())
    loop.wire.drop("convergence")
    rounds = []
    for _ in range(3):
        rounds.append(convergence.run(woken=True).get("orphaned", 0))
        assert any(queue == "convergence" for queue, _ in loop.wire.sent)
        loop.wire.drop("convergence")
    assert rounds == [2, 2, 1]


# ------------------------------------------------------------------ the clock was put back


def test_deadline_in_the_future_is_not_due(loop: Loop) -> None:
    loop.submit(scheduling_timeout_seconds=60)
    now = clock.now()
    found = {
        ahead: find_candidates("unplaced", parameters_of(now + ahead, now + HOUR, Policy()))
        for ahead in (timedelta(), HOUR)
    }
    assert [len(item) for item in found.values()] == [0, 1]


@pytest.mark.parametrize("name", ["recount", "orphans", "stored_totals"])
def test_walk_with_a_timestamp_in_the_future_is_due(loop: Loop, name: str) -> None:
    now = clock.now()
    Walk.objects.create(name=name, after="", scanned_at=now + HOUR, repaired=0)
    assert find_due(now, None, Policy(), among=[name]) == {name}
    Walk.objects.update(scanned_at=now + timedelta(seconds=1))
    assert find_due(now, None, Policy(), among=[name]) == set()
