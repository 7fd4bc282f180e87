"""`manage.py recount` finds and repairs what contradicts the tasks, while everything runs."""

import random
import re
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import transaction

from controlplane import clock
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.state.recount import recount_jobs
from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Job, TaskGroup, Transition
from controlplane.queries.integrity import invariants
from controlplane.queries.locks import lock_jobs
from controlplane.queries.sql import execute, rows
from tests.integration.loop.conftest import Loop
from tests.integration.loop.crowd import (
    WRONG_COUNTS,
    Crowd,
    cascade,
    place,
    report_progress,
    stop,
    submit_jobs,
)
from tests.simulation.world import World

CORRUPT_COUNTS = """
    UPDATE controlplane_taskgroup SET counts[5] = counts[5] + 1, counts[2] = counts[2] - 1
    WHERE job_id = %s AND counts[2] > 0
"""


def call(*words: str) -> tuple[int, str]:
    output = StringIO()
    try:
        call_command("recount", *words, stdout=output, stderr=output)
    except SystemExit as ended:
        return int(ended.code or 0), output.getvalue()
    return 0, output.getvalue()


def test_recount_of_correct_rows_finds_no_difference(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit(replicas=3)
    loop.place()
    cell.end(loop.attempts(job)[0], S.SUCCEEDED, exit_code=0)
    loop.submit()
    assert call() == (0, "2 jobs recounted, 0 differences repaired\n")


def test_recount_lists_wrong_counts_without_changing_them(loop: Loop) -> None:
    job = loop.submit(replicas=3)
    group = TaskGroup.objects.get()
    assert execute(CORRUPT_COUNTS, [job.pk])
    code, output = call()
    assert code == 1
    assert (
        f"group {group.pk} (main): counts 2 PENDING, 1 SUCCEEDED, its tasks are 3 PENDING" in output
    )
    assert "1 differences, 0 repaired (1 jobs checked): run it with --repair" in output
    assert TaskGroup.objects.get().counts[S.SUCCEEDED] == 1


def test_recount_with_repair_corrects_the_counts(loop: Loop) -> None:
    for _ in range(2):
        job = loop.submit(replicas=3)
    execute(CORRUPT_COUNTS, [job.pk])
    code, output = call("--repair")
    assert (code, output.count("(repaired)")) == (0, 1)
    assert TaskGroup.objects.get(job=job).counts[S.PENDING] == 3
    assert call() == (0, "2 jobs recounted, 0 differences repaired\n")
    assert loop.state(job) == "PENDING"


def test_recount_ends_a_job_whose_tasks_have_ended(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit(replicas=2, max_task_failures=1)
    loop.place()
    first, second = loop.attempts(job)
    # A success is missing: by its counts the job never ends.
    cell.end(first, S.SUCCEEDED, exit_code=0)
    execute("UPDATE controlplane_taskgroup SET counts[5] = 0, counts[10] = 2")
    cell.end(second, S.FAILED, exit_code=1)
    assert loop.state(job) == "RUNNING"
    code, output = call("--repair")
    assert code == 0
    assert f"job {job.pk}: is RUNNING, SUCCEEDED follows from its tasks (repaired)" in output
    assert loop.state(job) == "SUCCEEDED"
    done = Job.objects.get()
    assert done.finished_at is not None
    assert done.settled_at is not None
    change = Transition.objects.filter(job_id=job.pk, task_id=None).latest("id")
    assert (change.actor, change.to_state) == ("recount", S.SUCCEEDED)
    assert call()[0] == 0


def test_recount_ends_a_job_with_an_uncounted_failure(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit(replicas=2)
    loop.place()
    execute("UPDATE controlplane_job SET max_task_failures = 5")
    cell.end(loop.attempts(job)[0], S.FAILED, exit_code=1)
    execute("UPDATE controlplane_job SET max_task_failures = 0")
    assert f"job {job.pk}: is not ending, FAILED follows from its tasks" in call()[1]
    assert Job.objects.get().ending_as is None
    assert call("--repair")[0] == 0
    assert Job.objects.get().ending_as == S.FAILED
    loop.converge()
    assert loop.states(job) == ["FAILED", "KILLED"]


def test_recount_reports_but_keeps_a_contradicting_end(loop: Loop) -> None:
    job = loop.submit()
    cancel_job(job_id=job.pk, reason="", force=False, actor="ann", now=clock.now())
    execute("UPDATE controlplane_job SET state = 4, ending_as = NULL")
    execute(CORRUPT_COUNTS.replace("counts[2]", "counts[7]"), [job.pk])
    code, output = call("--repair")
    assert code == 1
    assert (
        f"INV-23 job {job.pk}: is SUCCEEDED, KILLED follows from its tasks, but an end is final"
        " (not repaired)" in output
    )
    assert "2 differences, 1 repaired (1 jobs checked)" in output
    assert Job.objects.get().state == S.SUCCEEDED
    assert TaskGroup.objects.get().counts[S.KILLED] == 1


def test_recount_reports_a_task_without_its_attempt(loop: Loop) -> None:
    loop.cell()
    job = loop.submit()
    loop.place()
    execute("UPDATE controlplane_task SET attempt_uid = gen_random_uuid()")
    code, output = call("--repair")
    assert code == 1
    pattern = r"INV-2 task \d+: its present attempt is [-\w]+, not [-\w]+ \(not repaired\)"
    [line] = re.findall(pattern, output)
    assert str(Attempt.objects.get().uid) in line
    assert loop.states(job) == ["ASSIGNED"]


def test_tasks_killed_by_a_dependency_are_recounted_from_history(loop: Loop) -> None:
    cell = loop.cell()
    task = {"image": "x", "command": ["true"], "resources": {"cpu": 0.1, "memory": "8Mi"}}
    groups = [
        {"name": "a", **task},
        {"name": "b", "depends_on": [{"group": "a"}], "replicas": 2, **task},
    ]
    job = loop.submit(groups=groups, max_task_failures=1)
    loop.place()
    cell.end(loop.attempts(job)[0], S.FAILED, exit_code=1)
    loop.converge()
    group = TaskGroup.objects.get(name="b")
    assert group.killed_by_dependency == 2
    assert call()[0] == 0
    state = loop.state(job)
    TaskGroup.objects.update(killed_by_dependency=1)
    code, output = call("--repair")
    assert output.count("(repaired)") == 2
    difference = "killed_by_dependency is 1, not 2"
    assert f"group {group.pk} (b): {difference} (repaired)" in output
    assert (code, loop.state(job)) == (0, state)
    assert TaskGroup.objects.get(name="b").killed_by_dependency == 2


def test_recount_pages_are_bounded_by_tasks_and_jobs(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [loop.submit(replicas=size).pk for size in (4, 4, 4, 9, 1)]
    monkeypatch.setattr(invariants, "MOST_TASKS", 8)
    seen: list[list[int]] = []
    after: int | None = 0
    while after is not None:
        page = invariants.find_page(after)
        seen.append(page.job_ids)
        after = page.reached
    assert seen == [ids[:2], ids[2:3], ids[3:4], ids[4:]]
    monkeypatch.setattr(invariants, "MOST_JOBS", 1)
    assert invariants.find_page(0).job_ids == ids[:1]
    Job.objects.filter(pk=ids[0]).update(deleted_at=clock.now())
    assert invariants.find_page(0).job_ids == ids[1:2]
    monkeypatch.setattr(invariants, "MOST_IDS", 1)
    assert invariants.find_page(0) == invariants.JobsPage([], ids[0])
    execute(CORRUPT_COUNTS, [ids[4]])
    assert call()[0] == 1


@pytest.mark.parametrize(("seed", "moment"), [(5, 15.0), (6, 30.0), (8, 60.0)])
def test_recount_finds_no_difference_in_a_simulation(
    transactional_db: None, seed: int, moment: float
) -> None:
    world, outputs = World(seed=seed), []
    with world.installed():
        world.run(healed_at=moment, heal=lambda: outputs.append(call()))
    for code, output in (*outputs, call()):
        assert code == 0, f"seed {seed}: {output}"
    assert Attempt.objects.exists()


def recount_all(found: list[str], *, repair: bool) -> None:
    """Page by page, as the command does."""
    after: int | None = 0
    while after is not None:
        page = invariants.find_page(after)
        after = page.reached
        found.extend(map(str, recount_jobs(page.job_ids, repair=repair, now=clock.now())))


def busy(loop: Loop, seed: int) -> Crowd:
    """Submitting, placing, reporting, cancelling and converging at once, on a board in use."""
    together = Crowd(seed)
    cells = [loop.cell(f"cell-{n}", cpu=4000) for n in range(2)]
    for _ in range(4):
        loop.submit(replicas=6, retries={"failure": 1})
    loop.place()
    together.add(
        place, cascade, stop, submit_jobs(loop), *(report_progress(cell) for cell in cells)
    )
    return together


@pytest.mark.serial
@pytest.mark.parametrize(("repair", "seed"), [(False, 1), (True, 2)])
def test_recount_finds_no_difference_during_reports_and_ticks(
    loop: Loop, repair: bool, seed: int
) -> None:
    together, found = busy(loop, seed), list[str]()
    together.add(*[lambda dice: recount_all(found, repair=repair)] * 2)
    together.run(rounds=40)
    assert found == []
    assert rows(WRONG_COUNTS) == []
    assert Attempt.objects.filter(finished_at__isnull=False).exists()


@pytest.mark.serial
def test_recount_repairs_counts_corrupted_concurrently(loop: Loop) -> None:
    together, repaired = busy(loop, seed=3), list[str]()

    def spoil(dice: random.Random) -> None:
        """As a mistake in a transaction of ours would: under the job's lock."""
        ids = list(Job.objects.filter(finished_at=None).values_list("id", flat=True))
        if ids:
            with transaction.atomic():
                job_id = dice.choice(ids)
                lock_jobs([job_id])
                execute(CORRUPT_COUNTS.replace("counts[5]", "counts[10]"), [job_id])

    together.add(spoil, lambda dice: recount_all(repaired, repair=True))
    together.run(rounds=40)
    recount_all(repaired, repair=True)
    assert repaired
    assert rows(WRONG_COUNTS) == []
    assert call()[0] == 0
