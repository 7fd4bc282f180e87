"""S1.5: `cache_serializable`: "If another execution is already running for the same cache key, the
engine transitions the TaskAction to a WaitingForCache phase and requeues, preventing redundant
work"; it "releases any held reservations" at the end.
"""

import threading
from typing import Any

import pytest
from django.conf import settings
from django.db import connection, transaction

from controlplane.commands.jobs.cancel import cancel_job
from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, CacheReservation, Job, Task
from controlplane.queries.placement.snapshot import load_waiting_shapes
from controlplane.queries.sql import rows
from controlplane.queries.views.tasks import get_task
from controlplane.ticks import placement
from controlplane.ticks.placement_pass import pass_pool_safely
from tests.scenarios.cells import LiveStage, RealCell
from tests.scenarios.stage import Stage

_BLOCKED = """
    SELECT count(*) FROM pg_stat_clear_snapshot(), pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'
"""
SERIAL = {"cache": {"enabled": True, "serialize": True, "key": "same"}}


def submit(stage: Stage, count: int, **body: Any) -> list[Job]:
    return [stage.submit_small(**{**SERIAL, **body}) for _ in range(count)]


def go_on(stage: Stage) -> None:
    """Let the control plane do all that it can do at this moment."""
    for _ in range(3):
        stage.converge()
        stage.place()


def on_cells() -> list[Attempt]:
    return list(Attempt.objects.filter(released_at=None).order_by("created_at"))


def statuses(stage: Stage, jobs: list[Job]) -> list[str]:
    return [str(get_task(stage.task(job).pk, now=stage.now())["cache_status"]) for job in jobs]


def finish(stage: Stage, attempt: Attempt, result: str = "1") -> None:
    stage.end(attempt, S.SUCCEEDED, exit_code=0, result=result)


def test_one_of_many_identical_tasks_runs_and_all_have_its_result(stage: Stage) -> None:
    for number in range(20):
        stage.cell(f"cell-{number}")
    jobs = submit(stage, 200)
    go_on(stage)
    [attempt] = on_cells()
    assert attempt.job_id == jobs[0].pk
    finish(stage, attempt)
    go_on(stage)
    assert statuses(stage, jobs) == ["POPULATED"] + ["HIT"] * 199
    assert {stage.state(job) for job in jobs} == {"SUCCEEDED"}
    assert Attempt.objects.count() == 1
    stage.check()


def test_tasks_of_one_group_with_one_key_run_once(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(replicas=30, **SERIAL)
    go_on(stage)
    [attempt] = on_cells()
    finish(stage, attempt)
    go_on(stage)
    assert (stage.state(job), Attempt.objects.count()) == ("SUCCEEDED", 1)


def test_tasks_of_one_group_with_derived_keys_run_side_by_side(stage: Stage) -> None:
    stage.cell()
    stage.submit_small(replicas=5, cache={"enabled": True, "serialize": True})
    go_on(stage)
    assert len(on_cells()) == 5


def test_waiting_task_names_the_job_it_waits_for_and_since_when(stage: Stage) -> None:
    stage.cell()
    first, second = submit(stage, 2)
    go_on(stage)
    [attempt] = on_cells()
    reason = stage.why(second)
    assert reason["code"] == "waiting_for_cache"
    assert reason["job"] == first.pk
    assert f"job {first.pk}" in reason["text"]
    since = attempt.created_at.isoformat(timespec="milliseconds")
    assert reason["since"] == since
    assert since in reason["text"]


def test_next_waiter_runs_when_the_owner_fails(stage: Stage) -> None:
    stage.cell()
    jobs = submit(stage, 3)
    go_on(stage)
    for job in jobs[:2]:
        [attempt] = on_cells()
        assert attempt.job_id == job.pk
        stage.fail(attempt)
        go_on(stage)
    [attempt] = on_cells()
    finish(stage, attempt)
    go_on(stage)
    assert [stage.state(job) for job in jobs] == ["FAILED", "FAILED", "SUCCEEDED"]
    assert Attempt.objects.count() == 3


def test_all_fail_if_none_succeeds(stage: Stage) -> None:
    stage.cell()
    jobs = submit(stage, 3)
    for _ in jobs:
        go_on(stage)
        [attempt] = on_cells()
        stage.fail(attempt)
    go_on(stage)
    assert {stage.state(job) for job in jobs} == {"FAILED"}


def test_next_waiter_runs_when_the_owner_is_cancelled(stage: Stage) -> None:
    stage.cell()
    first, second = submit(stage, 2)
    go_on(stage)
    [attempt] = on_cells()
    cancel_job(job_id=first.pk, actor="owner", reason="", force=False, now=stage.now())
    stage.confirm(attempt)
    go_on(stage)
    [attempt] = on_cells()
    assert attempt.job_id == second.pk


def test_lost_owner_runs_again_before_the_waiters(stage: Stage) -> None:
    stage.cell("cell-1")
    stage.cell("cell-2")
    jobs = submit(stage, 4)
    go_on(stage)
    [attempt] = on_cells()
    stage.lose(stage.fake_cell_of(attempt))
    go_on(stage)
    [again] = on_cells()
    assert (again.job_id, again.number) == (jobs[0].pk, 2)
    finish(stage, again)
    go_on(stage)
    assert statuses(stage, jobs) == ["POPULATED", "HIT", "HIT", "HIT"]
    assert Attempt.objects.count() == 2


def test_lost_owner_runs_again_before_a_waiter_that_was_submitted_earlier(stage: Stage) -> None:
    for number in range(3):
        stage.cell(f"cell-{number}")
    first, second, third = submit(stage, 3, retries={"failure": 1})
    go_on(stage)
    stage.fail(*on_cells())
    go_on(stage)
    [owner] = on_cells()
    stage.start(owner)
    stage.wait(60)
    go_on(stage)
    assert owner.job_id == second.pk
    assert stage.why(first)["code"] == stage.why(third)["code"] == "waiting_for_cache"
    stage.lose(stage.fake_cell_of(owner))
    go_on(stage)
    [again] = on_cells()
    assert (again.job_id, again.number) == (second.pk, 2)


def test_owner_that_backs_off_is_overtaken(stage: Stage) -> None:
    stage.cell()
    first, second = submit(stage, 2, retries={"failure": 3})
    go_on(stage)
    [attempt] = on_cells()
    stage.fail(attempt)
    go_on(stage)
    [other] = on_cells()
    assert other.job_id == second.pk
    stage.start(other)
    stage.wait(60)
    go_on(stage)
    assert on_cells() == [other]
    assert stage.why(first)["job"] == second.pk
    finish(stage, other)
    go_on(stage)
    assert [stage.state(job) for job in (first, second)] == ["SUCCEEDED"] * 2


def test_no_task_is_evicted_for_one_whose_key_is_taken(stage: Stage) -> None:
    stage.cell(cpu=200)  # room for two tasks
    other = stage.submit_small(band="batch")
    first, second = submit(stage, 2, retries={"failure": 3})
    go_on(stage)
    [failed] = [attempt for attempt in on_cells() if attempt.job_id == first.pk]
    stage.fail(failed)
    go_on(stage)
    stage.start(stage.last(other))
    stage.start(stage.last(second))
    stage.wait(60)  # longer than the back-off
    go_on(stage)
    assert stage.why(first)["code"] == "waiting_for_cache"
    assert stage.states(other) == stage.states(second) == ["RUNNING"]
    stage.check()


def test_waiter_ends_at_its_own_deadline(stage: Stage) -> None:
    stage.cell()
    [first] = submit(stage, 1)
    go_on(stage)
    [second] = submit(stage, 1, scheduling_timeout_seconds=30)
    go_on(stage)
    stage.start(*on_cells())
    stage.wait(31)
    placement.run(woken=False)
    stage.converge()
    assert (stage.states(second), stage.states(first)) == (["UNSCHEDULABLE"], ["RUNNING"])


def test_waiter_does_not_hold_up_a_strict_queue(stage: Stage) -> None:
    stage.policy(strict_fifo=True)
    stage.cell(cpu=200)  # room for the owner and one more task
    submit(stage, 3)
    go_on(stage)
    later = stage.submit_small()
    stage.place()
    assert stage.states(later) == ["ASSIGNED"]


def test_waiter_with_other_resources_runs_if_the_first_one_has_no_room(stage: Stage) -> None:
    stage.cell("cell-1", cpu=300)
    stage.placed()  # it takes a third of it
    first, second = (
        stage.submit(groups=[stage.group("g", resources={"cpu": cpu}, **SERIAL)])
        for cpu in (0.3, 0.1)
    )
    go_on(stage)
    [_, attempt] = on_cells()
    assert attempt.job_id == second.pk
    finish(stage, attempt)
    go_on(stage)
    assert [stage.state(job) for job in (first, second)] == ["SUCCEEDED"] * 2


def test_task_whose_key_is_free_does_not_wait_for_the_next_interval(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    wakes: list[None] = []
    monkeypatch.setattr("controlplane.outbox.wakes.wake_convergence", lambda: wakes.append(None))
    stage.cell()
    submit(stage, 1)
    wakes.clear()
    stage.converge()
    while wakes:  # as a woken tick does
        wakes.clear()
        stage.converge()
    stage.place()
    assert len(on_cells()) == 1


def test_waiter_of_another_pool_runs_if_the_first_one_has_no_room(stage: Stage) -> None:
    stage.cell_of("east", "cell-e", cpu=4000)
    stage.cell("cell-1", cpu=100)
    stage.placed()  # it takes all of it
    [first] = submit(stage, 1)
    [second] = submit(stage, 1, pool="east")
    go_on(stage)
    [_, attempt] = on_cells()
    assert attempt.job_id == second.pk
    finish(stage, attempt)
    go_on(stage)
    assert [stage.state(job) for job in (first, second)] == ["SUCCEEDED"] * 2


def test_waiter_of_a_pool_waits_while_the_task_runs_in_another(stage: Stage) -> None:
    stage.cell_of("east", "cell-e")
    stage.cell()
    submit(stage, 1)
    submit(stage, 1, pool="east")
    go_on(stage)
    assert len(on_cells()) == 1


def test_two_processes_that_place_identical_tasks_at_once_place_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The lock that lets one process place at a time only saves work.
    unlocked = settings.CELLRUN.model_copy(update={"advisory_locks": False})
    monkeypatch.setattr(settings, "CELLRUN", unlocked)
    stage.cell_of("east", "cell-e")
    stage.cell()
    [failed] = submit(stage, 1)
    go_on(stage)
    stage.fail(*on_cells())
    jobs = [*submit(stage, 1), *submit(stage, 1, pool="east")]
    stage.settle()

    def place(pool_id: int) -> None:
        [waiting] = [it for it in load_waiting_shapes(stage.now()) if it.pool_id == pool_id]
        pass_pool_safely(waiting, now=stage.now())
        connection.close()

    threads = [threading.Thread(target=place, args=[job.pool_id]) for job in jobs]
    with transaction.atomic():
        CacheReservation.objects.select_for_update().get()
        for thread in threads:
            thread.start()
        while rows(_BLOCKED) != [(2,)]:  # both have chosen their task
            assert all(thread.is_alive() for thread in threads)
    for thread in threads:
        thread.join()
    [attempt] = on_cells()
    assert attempt.job_id in {job.pk for job in jobs}
    go_on(stage)
    finish(stage, attempt)
    go_on(stage)
    assert sorted(statuses(stage, jobs)) == ["HIT", "POPULATED"]
    assert stage.state(failed) == "FAILED"
    stage.check()


def test_overwriting_tasks_run_one_after_another(stage: Stage) -> None:
    stage.cell()
    cache = {**SERIAL["cache"], "overwrite": True}
    jobs = submit(stage, 3, cache=cache)
    for number in range(3):
        go_on(stage)
        [attempt] = on_cells()
        finish(stage, attempt, str(number))
    go_on(stage)
    assert statuses(stage, jobs) == ["POPULATED"] * 3
    assert Attempt.objects.count() == 3


def test_result_that_is_never_stored_frees_the_key(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise PermissionError(30, "Read-only file system")

    stage.cell()
    first, second = submit(stage, 2)
    go_on(stage)
    monkeypatch.setattr("controlplane.commands.cache.store.put_manifest", fail)
    finish(stage, on_cells()[0])
    go_on(stage)
    assert (statuses(stage, [first]), stage.state(first)) == (["PUT_FAILURE"], "SUCCEEDED")
    [attempt] = on_cells()
    assert attempt.job_id == second.pk
    monkeypatch.undo()
    finish(stage, attempt)
    go_on(stage)
    assert statuses(stage, [second]) == ["POPULATED"]


def test_store_that_is_away_at_the_lookup_lets_the_task_run(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> bool:
        raise TimeoutError("the store does not answer")

    stage.cell()
    [first] = submit(stage, 1)
    go_on(stage)
    finish(stage, on_cells()[0])
    go_on(stage)
    monkeypatch.setattr("controlplane.commands.cache.lookup.is_complete", fail)
    [second] = submit(stage, 1)
    go_on(stage)
    assert statuses(stage, [first, second]) == ["POPULATED", "LOOKUP_FAILURE"]
    finish(stage, on_cells()[0], "2")
    go_on(stage)
    assert stage.state(second) == "SUCCEEDED"


def test_no_task_is_evicted_for_one_that_waits_for_its_key_without_a_store(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> bool:
        raise TimeoutError("the store does not answer")

    def submit_half(**body: Any) -> Job:
        return stage.submit(resources={"cpu": 0.5, "memory": "64Mi"}, **body)

    stage.policy(preemption=True)
    stage.cell(cpu=1000)
    submit(stage, 1)
    go_on(stage)
    finish(stage, on_cells()[0])
    go_on(stage)
    monkeypatch.setattr("controlplane.commands.cache.lookup.is_complete", fail)
    owner, low = submit_half(**SERIAL), submit_half(band="batch")
    go_on(stage)
    assert stage.states(owner) + stage.states(low) == ["ASSIGNED", "ASSIGNED"]
    waiting = [submit_half(band="production", **SERIAL) for _ in range(2)]
    go_on(stage)
    assert stage.states(low) == ["ASSIGNED"]
    assert {stage.why(job)["code"] for job in waiting} == {"waiting_for_cache"}
    for job in (owner, *waiting):
        [attempt] = (attempt for attempt in on_cells() if attempt.job_id != low.pk)
        assert attempt.job_id == job.pk
        finish(stage, attempt)
        go_on(stage)
    assert statuses(stage, waiting) == ["POPULATED", "POPULATED"]
    assert stage.states(low) == ["ASSIGNED"]
    stage.check()


def test_dead_process_between_success_and_storing_frees_the_key(stage: Stage) -> None:
    stage.cell()
    first, second = submit(stage, 2)
    go_on(stage)
    finish(stage, on_cells()[0])
    # Another process would store it; for 30 seconds the key stays reserved.
    stage.place()
    assert on_cells() == []
    go_on(stage)
    assert [stage.state(job) for job in (first, second)] == ["SUCCEEDED"] * 2


def test_row_of_a_reservation_goes_a_day_after_its_end(stage: Stage) -> None:
    stage.cell()
    submit(stage, 1)
    submit(stage, 1, cache={**SERIAL["cache"], "key": "other"})
    go_on(stage)
    first, second = on_cells()
    stage.start(first, second)
    finish(stage, first)
    go_on(stage)
    for _ in range(2):
        stage.wait(86_500)
        stage.settle()
    [left] = CacheReservation.objects.all()
    assert left.attempt_uid == second.uid
    stage.check()


def test_identical_programs_run_once(live: LiveStage, cell: RealCell) -> None:
    log = live.home / "runs"
    where = cell.signal_file("runs") if cell.config.driver == "process" else "/tmp/runs"
    jobs = [
        live.run(cell, f"echo $$ >> {where}; echo 5 > {cell.root}/out/result", **SERIAL)
        for _ in range(20)
    ]
    for job in jobs:
        live.until_settled(job)
    assert Attempt.objects.count() == 1
    assert {live.result(job) for job in jobs} == {"5\n"}
    assert Task.objects.filter(cache_entry_id__isnull=False).count() == 19
    if cell.config.driver == "process":
        assert len(log.read_text().split()) == 1
