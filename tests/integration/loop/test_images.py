"""An image that no cell can pull: its tasks wait, and say why; others do not."""

from datetime import timedelta

from controlplane import clock
from controlplane.commands.images import ALERT, hold_images
from controlplane.contract.reports import AttemptReport
from controlplane.contract.states import FailureKind
from controlplane.contract.states import TaskState as S
from controlplane.models import Alert, Attempt, ImageFailure, Job, Task
from controlplane.queries.tasks import get_task
from tests.integration.loop.conftest import Hand, Loop


def fail_to_pull(loop: Loop, cells: list[Hand], job: Job) -> None:
    loop.place()
    by_id = {attempt.cell_id: attempt for attempt in loop.attempts(job)}
    for cell in cells:
        [attempt] = [one for one in by_id.values() if one.cell.name == cell.name]
        cell.report(
            AttemptReport(
                str(attempt.uid),
                0,
                S.FAILED,
                failure_kind=FailureKind.SYSTEM,
                reason="registry",
                message="pull: dial tcp: connection refused",
                gone=True,
            )
        )


def test_an_image_that_fails_on_three_cells_holds_up_all_its_tasks_and_no_others(
    loop: Loop,
) -> None:
    cells = [loop.cell(f"cell-{number}", cpu=1000) for number in range(3)]
    spread = {"image": "lost:1", "resources": {"cpu": 1, "memory": "64Mi"}}
    first = loop.submit(replicas=3, **spread)
    fail_to_pull(loop, cells[:2], first)
    hold_images(now=clock.now())
    assert not Task.objects.filter(not_before__gt=clock.now() + timedelta(seconds=55)).exists()
    [attempt] = [one for one in loop.attempts(first) if one.cell.name == "cell-2"]
    second, other = loop.submit(replicas=2, **spread), loop.submit(image="good:1")
    cells[2].report(
        AttemptReport(
            str(attempt.uid), 0, S.FAILED, failure_kind=FailureKind.SYSTEM, reason="registry",
            gone=True,
        )
    )  # fmt: skip
    loop.converge()
    loop.place()
    assert (loop.states(second), loop.states(other)) == (["PENDING"] * 2, ["ASSIGNED"])
    for task in Task.objects.filter(job__in=[first, second]):
        told = get_task(task.pk, now=clock.now())["pending_reason"]
        assert told["code"] == "backing_off"
        assert "could not pull its image lost:1" in told["text"]
    assert Alert.objects.filter(kind=ALERT, subject="lost:1", cleared_at=None).exists()


def test_once_it_was_pulled_nobody_waits_for_it_any_more(loop: Loop) -> None:
    cells = [loop.cell(f"cell-{number}", cpu=1000) for number in range(3)]
    spread = {"image": "slow:1", "resources": {"cpu": 1, "memory": "64Mi"}}
    job = loop.submit(replicas=3, **spread)
    fail_to_pull(loop, cells, job)
    loop.converge()
    waiting = Task.objects.filter(job=job, not_before__gt=clock.now() + timedelta(seconds=50))
    assert waiting.count() == 3
    # One of them began on a cell where it was placed before.
    Task.objects.filter(pk=waiting.first().pk).update(not_before=None)  # type: ignore[union-attr]
    loop.place()
    [attempt] = Attempt.objects.filter(job=job, released_at=None)
    [cell] = [one for one in cells if one.name == attempt.cell.name]
    cell.report(AttemptReport(str(attempt.uid), 0, S.RUNNING))
    hold_images(now=clock.now())
    assert not ImageFailure.objects.exists()
    assert not waiting.exists()
    assert not Alert.objects.filter(kind=ALERT, cleared_at=None).exists()
