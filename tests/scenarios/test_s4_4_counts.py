"""S4.4: how many tasks of each group are in each state, right at every moment."""

from collections import Counter

from controlplane import clock
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState as S
from controlplane.domain.roles import Role
from controlplane.models import Job, Task, TaskGroup
from tests.integration.api.conftest import make_caller
from tests.scenarios.stage import SMALL, Stage


def counted(job: Job) -> dict[str, dict[str, int]]:
    """The same from the tasks themselves."""
    return {
        group.name: dict(Counter(S(n).name for n in group.tasks.values_list("state", flat=True)))
        for group in TaskGroup.objects.filter(job=job)
    }


def test_counts_are_correct_after_every_change(stage: Stage) -> None:
    cell = stage.cell()
    groups = [
        stage.group("a", replicas=4),
        stage.group("b", replicas=2, depends_on=[{"group": "a", "until": "started"}]),
    ]
    job = stage.submit(groups=groups, retries={"failure": 1}, max_task_failures=6)

    def right() -> bool:
        return stage.counts(job) == counted(job)

    assert stage.counts(job) == {"a": {"PENDING": 4}, "b": {"PENDING": 2}}
    stage.place()
    assert stage.counts(job) == {"a": {"ASSIGNED": 4}, "b": {"PENDING": 2}}
    attempts = stage.newest(job)
    for attempt in attempts:
        stage.build(attempt)
        assert right()
        stage.start(attempt)
        assert right()
    stage.place()
    stage.succeed(attempts[0])
    stage.fail(attempts[1])
    assert stage.counts(job)["a"] == {"PENDING": 1, "SUCCEEDED": 1, "RUNNING": 2}
    assert right()
    stage.lose(cell)
    assert right()
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    stage.settle()
    assert right()
    assert stage.counts(job)["b"] == {"KILLED": 2}
    stage.check()


def test_all_changes_of_one_batch_are_counted(stage: Stage) -> None:
    cell = stage.cell()
    job = stage.submit_small(replicas=6, max_task_failures=6)
    stage.place()
    ends = [S.SUCCEEDED, S.SUCCEEDED, S.FAILED, S.RUNNING, S.BUILDING, S.SUCCEEDED]
    cell.report(
        *(
            AttemptReport(
                str(attempt.uid), 0, end, exit_code=0, gone=end in (S.SUCCEEDED, S.FAILED)
            )
            for attempt, end in zip(stage.newest(job), ends, strict=True)
        )
    )
    assert stage.counts(job) == {"main": {"SUCCEEDED": 3, "FAILED": 1, "RUNNING": 1, "BUILDING": 1}}


def test_the_counts_of_a_group_always_sum_up_to_its_tasks(stage: Stage) -> None:
    stage.cell(cpu=300)
    job = stage.submit_small(replicas=5, retries={"failure": 1}, max_task_failures=5)
    for _ in range(6):
        stage.place()
        for number, attempt in enumerate(stage.newest(job)):
            (stage.fail if number % 2 else stage.succeed)(attempt)
            assert sum(job.groups.get().counts) == 5
        stage.wait(5)
    assert Task.objects.filter(job=job).count() == 5


def test_api_returns_counts_per_group_and_state(stage: Stage) -> None:
    stage.cell(cpu=200)
    caller = make_caller("ann", Role.SUBMITTER)
    groups = [{"name": "a", "replicas": 3, **SMALL}, {"name": "b", **SMALL}]
    key = caller.post("/jobs", {"name": "x", "groups": groups}).json["id"]
    stage.place()
    counts = caller.get(f"/jobs/{key}").json["task_status_count"]
    assert counts == {
        "a": {"phase": {"PENDING": 1, "ASSIGNED": 2}},
        "b": {"phase": {"PENDING": 1}},
    }


def test_tasks_killed_by_a_dependency_are_counted_separately(stage: Stage) -> None:
    stage.cell()
    groups = [stage.group("a"), stage.group("b", replicas=2, depends_on=[{"group": "a"}])]
    job = stage.submit(groups=groups, max_task_failures=1)
    stage.place()
    stage.fail(*stage.newest(job))
    stage.settle()
    excused = dict(job.groups.values_list("name", "killed_by_dependency"))
    assert (stage.counts(job)["b"], excused) == ({"KILLED": 2}, {"a": 0, "b": 2})
