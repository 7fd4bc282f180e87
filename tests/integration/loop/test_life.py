"""The life of jobs through the loop: placed, sent, reported, rolled up, with their history."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import pytest

from controlplane import clock
from controlplane.commands.cells.operate import drain_cell
from controlplane.commands.jobs.cancel import cancel_job, cancel_task
from controlplane.contract.messages.orders import Orders, Sync
from controlplane.contract.messages.reports import AttemptReport, Goodbye, Heartbeat, Register
from controlplane.contract.states import FailureKind
from controlplane.contract.states import TaskState as S
from controlplane.domain.errors import Conflict, NotFound
from controlplane.inbox import batches
from controlplane.models import (
    Alert,
    Attempt,
    Cell,
    CellLease,
    DeadLetter,
    InboxProbe,
    Job,
    Pool,
    Shape,
    Task,
    TaskGroup,
    TickState,
    Transition,
)
from controlplane.queries.convergence.due import list_jobs_with
from controlplane.queries.placement.snapshot import load_pass_facts
from controlplane.queries.sql import execute
from controlplane.ticks import convergence, placement
from tests.integration.loop.conftest import FakeCell, Loop


class Gathering:
    """A substitute for the inbox that keeps messages, so that they come in one batch."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def apply(self, raw: Sequence[str]) -> None:
        self.texts += raw


@contextmanager
def gathered(loop: Loop) -> Iterator[Gathering]:
    inbox, gathering = loop.inbox, Gathering()
    loop.inbox = gathering  # type: ignore[assignment]
    yield gathering
    loop.inbox = inbox
    inbox.apply(gathering.texts)


def history(job: Job) -> list[tuple[str, str]]:
    found = Transition.objects.filter(job_id=job.pk, task_id__isnull=False).order_by("id")
    return [(S(row.from_state).name, S(row.to_state).name) for row in found]


def test_task_is_placed_started_and_succeeds_with_history(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit()
    assert (loop.state(job), loop.states(job)) == ("PENDING", ["PENDING"])
    loop.place()
    assert (loop.state(job), loop.states(job)) == ("RUNNING", ["ASSIGNED"])
    (attempt,) = loop.attempts(job)
    assert cell.run_orders() == [str(attempt.uid)]
    cell.report(AttemptReport(str(attempt.uid), 0, S.RUNNING, started_at=clock.now().timestamp()))
    assert loop.states(job) == ["RUNNING"]
    cell.end(attempt, S.SUCCEEDED, exit_code=0, result="42")
    assert (loop.state(job), loop.states(job)) == ("SUCCEEDED", ["SUCCEEDED"])
    assert history(job) == [
        ("PENDING", "ASSIGNED"),
        ("ASSIGNED", "RUNNING"),
        ("RUNNING", "SUCCEEDED"),
    ]
    done = Job.objects.get(pk=job.pk)
    assert done.started_at is not None
    assert done.settled_at is not None
    assert loop.attempts(job)[0].result == "42"


def test_counts_follow_every_change(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit(replicas=3, max_task_failures=1)
    loop.place()
    first, second, third = loop.attempts(job)
    cell.end(first, S.SUCCEEDED, exit_code=0)
    cell.end(second, S.FAILED, exit_code=1)
    counts = TaskGroup.objects.get(job=job).counts
    assert {S(n).name: count for n, count in enumerate(counts) if count} == {
        "SUCCEEDED": 1,
        "FAILED": 1,
        "ASSIGNED": 1,
    }
    cell.end(third, S.SUCCEEDED, exit_code=0)
    assert loop.state(job) == "SUCCEEDED"


def test_failure_over_the_tolerance_ends_the_job_and_stops_its_tasks(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit(replicas=2)
    loop.place()
    first, second = loop.attempts(job)
    cell.end(first, S.FAILED, exit_code=3)
    assert Job.objects.get(pk=job.pk).ending_as == S.FAILED
    loop.converge()
    assert loop.states(job) == ["FAILED", "KILLED"]
    assert loop.state(job) == "FAILED"
    assert cell.stop_orders() == [str(second.uid)]
    assert Job.objects.get(pk=job.pk).settled_at is None
    cell.end(second, S.KILLED)
    assert Job.objects.get(pk=job.pk).settled_at is not None


def test_a_retry_waits_and_then_runs_again(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit(retries={"failure": 1})
    loop.place()
    cell.end(loop.attempts(job)[0], S.FAILED, exit_code=1)
    (task,) = loop.tasks(job)
    assert (task.state, task.failure_count) == (S.PENDING, 1)
    assert task.not_before is not None
    loop.place()
    assert len(loop.attempts(job)) == 1
    Task.objects.filter(pk=task.pk).update(not_before=clock.now())
    loop.place()
    assert loop.attempts(job)[1].number == 2


def test_capacity_is_held_until_the_container_is_confirmed_gone(loop: Loop) -> None:
    cell = loop.cell(cpu=1000)
    job, other = loop.submit(), loop.submit()
    loop.place()
    (attempt,) = loop.attempts(job)
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    assert loop.state(job) == "KILLED"
    loop.place()
    assert loop.states(other) == ["PENDING"]
    cell.end(attempt, S.KILLED)
    loop.place()
    assert loop.states(other) == ["ASSIGNED"]


def test_task_that_does_not_fit_has_a_pending_reason(loop: Loop) -> None:
    loop.cell(cpu=1000)
    job = loop.submit(resources={"cpu": 3, "memory": "64Mi"}, allow_unsatisfiable=True)
    loop.place()
    reason = Shape.objects.get(pk=TaskGroup.objects.get(job=job).shape_id).pending_reason
    assert reason["code"] == "insufficient_resources"
    assert reason["shortfall"] == {"cpu_millis": 2000}
    assert "cell-1" in reason["text"]


def test_a_group_waits_for_the_group_it_depends_on(loop: Loop) -> None:
    cell = loop.cell()
    small = {"image": "x", "command": ["true"], "resources": {"cpu": 1, "memory": "64Mi"}}
    job = loop.submit(
        groups=[
            {"name": "prepare", **small},
            {"name": "main", "depends_on": [{"group": "prepare"}], **small},
        ]
    )
    loop.place()
    assert loop.states(job) == ["ASSIGNED", "PENDING"]
    cell.end(loop.attempts(job)[0], S.SUCCEEDED, exit_code=0)
    loop.place()
    assert loop.states(job) == ["SUCCEEDED", "ASSIGNED"]


def test_group_with_a_failed_dependency_is_killed(
    loop: Loop,
) -> None:
    cell = loop.cell()
    small = {"image": "x", "command": ["true"], "resources": {"cpu": 1, "memory": "64Mi"}}
    job = loop.submit(
        max_task_failures=1,
        groups=[
            {"name": "prepare", **small},
            {"name": "main", "depends_on": [{"group": "prepare"}], **small},
        ],
    )
    loop.place()
    assert list_jobs_with("waiting_jobs", 9) == []
    cell.end(loop.attempts(job)[0], S.FAILED, exit_code=1)
    assert list_jobs_with("waiting_jobs", 9) == [job.pk]
    loop.converge()
    assert loop.states(job) == ["FAILED", "KILLED"]
    assert loop.state(job) == "FAILED"


def test_cancelled_job_sends_stop_orders_and_stays_killed(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit(replicas=2, resources={"cpu": 4, "memory": "64Mi"})
    loop.place()
    assert loop.states(job) == ["ASSIGNED", "PENDING"]
    cancel_job(job_id=job.pk, reason="enough", force=True, actor="me", now=clock.now())
    assert (loop.state(job), loop.states(job)) == ("KILLED", ["KILLED", "KILLED"])
    assert cell.stop_orders() == [str(loop.attempts(job)[0].uid)]
    assert "enough" in Job.objects.get(pk=job.pk).failure_reason
    cell.end(loop.attempts(job)[0], S.SUCCEEDED, exit_code=0)
    assert loop.states(job) == ["KILLED", "KILLED"]


def test_cancelling_a_missing_or_ended_task_is_refused(loop: Loop) -> None:
    with pytest.raises(NotFound):
        cancel_job(job_id=12345, reason="", force=False, actor="me", now=clock.now())
    with pytest.raises(NotFound):
        cancel_task(task_id=12345, reason="", force=False, actor="me", now=clock.now())
    job = loop.submit()
    (task,) = loop.tasks(job)
    cancel_task(task_id=task.pk, reason="", force=False, actor="me", now=clock.now())
    assert loop.state(job) == "KILLED"
    with pytest.raises(Conflict):
        cancel_task(task_id=task.pk, reason="", force=False, actor="me", now=clock.now())


def test_tasks_of_a_lost_cell_are_requeued_on_the_preemption_budget(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit()
    loop.place()
    long_ago = clock.now() - timedelta(hours=1)
    CellLease.objects.update(expires_at=long_ago, last_message_at=long_ago)
    for _ in range(2):
        loop.converge()
        assert loop.states(job) == ["ASSIGNED"]
    loop.converge()
    assert Cell.objects.get().state == "LOST"
    (task,) = loop.tasks(job)
    assert (task.state, task.preemption_count, task.attempt_open) == (S.PENDING, 1, False)
    assert loop.attempts(job)[0].release_kind == "cell_lost"
    assert cell.beat().draw_anew


def test_no_cell_is_lost_while_the_inbox_is_silent(loop: Loop) -> None:
    loop.cell()
    long_ago = clock.now() - timedelta(hours=1)
    CellLease.objects.update(expires_at=long_ago, last_message_at=long_ago)
    for _ in range(6):
        TickState.objects.filter(name="convergence").update(started_at=None)
        convergence.run(memory=loop.memory)
        InboxProbe.objects.update(delivered_until=long_ago)
    assert Cell.objects.get().state == "READY"


def test_unanswered_order_is_requeued_and_stopped(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit()
    loop.place()
    Attempt.objects.update(start_before=clock.now() - timedelta(seconds=1))
    loop.converge()
    (task,) = loop.tasks(job)
    assert (task.state, task.preemption_count, task.attempt_open) == (S.PENDING, 0, True)
    assert cell.stop_orders() == [str(loop.attempts(job)[0].uid)]
    loop.place()
    assert len(loop.attempts(job)) == 1
    cell.end(loop.attempts(job)[0], S.KILLED)
    assert loop.tasks(job)[0].attempt_open is False


def test_scheduling_deadline_applies_only_after_a_placement_pass(loop: Loop) -> None:
    job = loop.submit(scheduling_timeout_seconds=60)
    TaskGroup.objects.update(deadline_at=clock.now() - timedelta(seconds=1))
    loop.converge()
    assert loop.states(job) == ["PENDING"]
    loop.place()
    loop.converge()
    assert (loop.state(job), loop.states(job)) == ("UNSCHEDULABLE", ["UNSCHEDULABLE"])


def test_timeout_is_enforced_by_the_control_plane(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit(timeout_seconds=10)
    loop.place()
    (attempt,) = loop.attempts(job)
    cell.report(AttemptReport(str(attempt.uid), 0, S.RUNNING))
    Attempt.objects.update(started_at=clock.now() - timedelta(seconds=41))
    loop.converge()
    assert loop.states(job) == ["KILLED"]
    assert cell.stop_orders() == [str(attempt.uid)]


def test_task_is_retried_on_another_cell_after_a_system_failure(loop: Loop) -> None:
    first = loop.cell("cell-1")
    loop.cell("cell-2", cpu=2000)
    job = loop.submit()
    loop.place()
    (attempt,) = loop.attempts(job)
    first.end(attempt, S.FAILED, failure_kind=FailureKind.SYSTEM, message="disk full")
    Task.objects.update(not_before=None)
    loop.place()
    assert loop.attempts(job)[1].cell_id != attempt.cell_id


def test_draining_cell_gets_no_new_tasks(loop: Loop) -> None:
    loop.cell()
    drain_cell(name="cell-1", actor="me", now=clock.now())
    job = loop.submit()
    loop.place()
    reason = Shape.objects.get(pk=TaskGroup.objects.get(job=job).shape_id).pending_reason
    assert reason["text"] == "the pool has no ready cell (1 DRAINING)"


def test_heartbeat_answer_orders_missing_runs_and_stops_unknown_attempts(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit(replicas=2)
    loop.place()
    kept, lost = loop.attempts(job)
    Attempt.objects.update(created_at=clock.now() - timedelta(seconds=9))
    ghost = Attempt(uid="00000000-0000-0000-0000-000000000001", state=S.RUNNING)
    answer = cell.beat(kept, ghost)
    assert [run.uid for run in answer.orders.runs] == [str(lost.uid)]
    assert [stop.uid for stop in answer.orders.stops] == [ghost.uid]


def test_reports_are_acknowledged_up_to_the_first_gap(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit(replicas=2)
    loop.place()
    first, second = loop.attempts(job)
    before = cell.last_report
    cell.end(first, S.SUCCEEDED, exit_code=0)
    safe = cell.last_report
    assert cell.beat().acked == safe > before
    cell.seq += 1
    cell.report(AttemptReport(str(second.uid), 0, S.RUNNING), after=cell.seq)
    assert cell.beat().acked == safe
    cell.report(AttemptReport(str(second.uid), 0, S.RUNNING), after=safe)
    assert cell.beat().acked == cell.last_report


def test_second_incarnation_is_refused_until_the_cell_is_lost(loop: Loop) -> None:
    cell = loop.cell()
    cell.incarnation = "two"
    assert cell.register().verdict == "refused"
    Cell.objects.update(state="LOST")
    assert cell.register().verdict == "accepted"
    assert Cell.objects.get().incarnation == "two"


def test_registration_from_a_restored_journal_is_answered_draw_anew(loop: Loop) -> None:
    cell = loop.cell()
    cell.seq = 100
    cell.register()
    cell.seq = 50
    assert cell.register().verdict == "draw_anew"


@pytest.mark.parametrize("raw", ["", "{", '{"probe": "x"}', '{"v": 1}', "x" * 2_000_000, "\x00"])
def test_malformed_message_is_dropped(loop: Loop, raw: str) -> None:
    cell = loop.cell()
    job = loop.submit()
    loop.place()
    loop.inbox.apply([raw])
    assert loop.inbox.dropped.total() == 1
    cell.end(loop.attempts(job)[0], S.SUCCEEDED, exit_code=0)
    assert loop.state(job) == "SUCCEEDED"


def test_report_refused_by_the_database_becomes_a_dead_letter(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit(replicas=3)
    loop.place()
    first, poisoned, last = loop.attempts(job)
    # What PostgreSQL refuses, and nothing before it does.
    table = "ALTER TABLE controlplane_attempt"
    execute(f"{table} ADD CONSTRAINT poison CHECK (container_id <> 'poison')", [])
    try:
        cell.report(
            AttemptReport(str(first.uid), 0, S.SUCCEEDED, exit_code=0, gone=True),
            AttemptReport(str(poisoned.uid), 0, S.RUNNING, container_id="poison"),
            AttemptReport(str(last.uid), 0, S.SUCCEEDED, exit_code=0, gone=True),
        )
    finally:
        execute(f"{table} DROP CONSTRAINT poison", [])
    assert sorted(loop.states(job)) == ["ASSIGNED", "SUCCEEDED", "SUCCEEDED"]
    assert DeadLetter.objects.get().source == "inbox"
    assert cell.beat(poisoned).acked == cell.last_report


def test_job_start_time_is_the_first_start_of_a_task(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit(retries={"failure": 1})
    loop.place()
    start = clock.now().timestamp()
    cell.end(loop.attempts(job)[0], S.FAILED, exit_code=1, started_at=start, finished_at=start)
    first = Job.objects.get(pk=job.pk).started_at
    assert first is not None
    Task.objects.update(not_before=None)
    loop.place()
    cell.end(loop.attempts(job)[1], S.SUCCEEDED, exit_code=0, started_at=clock.now().timestamp())
    assert Job.objects.get(pk=job.pk).started_at == first


def test_task_in_back_off_schedules_another_placement_pass(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit(retries={"failure": 1})
    assert placement.run() is True
    assert placement.run() is False
    cell.end(loop.attempts(job)[0], S.FAILED, exit_code=1)
    assert placement.run() is True


def test_report_of_another_cell_does_not_replace_the_own_report(loop: Loop) -> None:
    own = loop.cell()
    job = loop.submit()
    loop.place()
    (attempt,) = loop.attempts(job)
    other = loop.cell("cell-2")
    foreign = AttemptReport(str(attempt.uid), 0, S.FAILED, exit_code=1, gone=True)
    ended = AttemptReport(str(attempt.uid), 0, S.SUCCEEDED, exit_code=0, gone=True)
    with gathered(loop):
        own.report(ended)
        other.report(foreign)
    assert loop.states(job) == ["SUCCEEDED"]


def test_failing_registration_raises_an_alert_and_blocks_no_other_cell(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("no \x00 or \ud800 in a column")

    cell, bad = loop.cell(), FakeCell(loop, "cell-2", {"cpu_millis": 1000})
    impossible = Register({"cpu_millis": 1}, task_types=("container",))
    with monkeypatch.context() as patch, gathered(loop) as batch:
        patch.setattr(batches, "record_registration", fail)
        batch.apply([json.dumps({"probe": 10**30})])
        bad.send(impossible.body())
        cell.send(Heartbeat(()).body())
    assert isinstance(cell.orders()[-1], Sync)
    assert Alert.objects.get(cleared_at=None).kind == "registration_failed"
    bad.register()
    assert not Alert.objects.filter(cleared_at=None).exists()


def test_job_whose_ending_fails_is_skipped_with_an_alert(loop: Loop) -> None:
    broken, job = loop.submit(), loop.submit()
    Job.objects.filter(pk__in=[broken.pk, job.pk]).update(
        ending_as=S.KILLED, ending_reason="cancelled"
    )
    Job.objects.filter(pk=broken.pk).update(ending_reason="no such reason")
    assert loop.converge()["ended"] == 1
    assert (loop.state(broken), loop.state(job)) == ("PENDING", "KILLED")
    assert Alert.objects.get().kind == "job_skipped"


def test_forced_second_cancel_kills_a_stopping_attempt(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit()
    loop.place()
    (attempt,) = loop.attempts(job)
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    cancel_job(job_id=job.pk, reason="", force=True, actor="me", now=clock.now())
    stops = [stop for order in cell.orders() if isinstance(order, Orders) for stop in order.stops]
    assert [(stop.uid, stop.force) for stop in stops] == [
        (str(attempt.uid), False),
        (str(attempt.uid), True),
    ]


def test_cell_is_quarantined_until_it_confirms_an_overdue_stop(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit()
    loop.place()
    (attempt,) = loop.attempts(job)
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    assert "cells_suspected" not in loop.converge()
    long_ago = clock.now() - timedelta(seconds=71)
    Attempt.objects.update(created_at=long_ago, finished_at=long_ago, stop_forced_at=long_ago)
    assert loop.converge()["cells_suspected"] == 1
    assert (Cell.objects.get().state, Cell.objects.get().state_reason) == (
        "QUARANTINED",
        "1 stop is not confirmed",
    )
    assert Alert.objects.get(cleared_at=None).kind == "stop_unconfirmed"
    assert "cells_cleared" not in loop.converge()
    cell.end(attempt, S.KILLED)
    assert loop.converge()["cells_cleared"] == 1
    assert Cell.objects.get().state == "READY"
    assert not Alert.objects.filter(cleared_at=None).exists()


def test_goodbye_extends_the_lease_and_its_repetition_does_not(
    loop: Loop,
) -> None:
    cell = loop.cell()
    before = CellLease.objects.get().expires_at
    with gathered(loop) as batch:
        cell.send(Goodbye(600).body())
    (goodbye,) = batch.texts
    extended = CellLease.objects.get().expires_at
    assert extended - before >= timedelta(seconds=600)
    cell.register()
    CellLease.objects.update(expires_at=before)
    loop.inbox.apply([goodbye])
    assert CellLease.objects.get().expires_at == before


def test_job_not_considered_by_a_pass_does_not_become_unschedulable(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    Pool.objects.update(strict_fifo=True)
    monkeypatch.setitem(load_pass_facts.__kwdefaults__, "limit", 1)
    jobs = [loop.submit(scheduling_timeout_seconds=60) for _ in range(2)]
    TaskGroup.objects.update(deadline_at=clock.now() - timedelta(seconds=1))
    loop.place()
    loop.converge()
    assert [loop.state(job) for job in jobs] == ["PENDING", "PENDING"]
