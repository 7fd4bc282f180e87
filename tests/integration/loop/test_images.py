"""An image that no cell can pull: its tasks wait with a reason; others do not wait."""

from datetime import timedelta

from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane import clock
from controlplane.commands.cells.image_failures import ALERT, hold_images, note_image_failures
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import FailureKind
from controlplane.contract.states import TaskState as S
from controlplane.models import Alert, Attempt, ImageFailure, Job, Task
from controlplane.queries.views.tasks import get_task
from tests.integration.loop.conftest import FakeCell, Loop

SMALL = {"cpu": 1, "memory": "64Mi"}


def fail_to_pull(loop: Loop, cells: list[FakeCell], job: Job) -> None:
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


def test_image_failing_on_three_cells_backs_off_only_its_tasks(
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
        reason = get_task(task.pk, now=clock.now())["pending_reason"]
        assert reason["code"] == "backing_off"
        assert "could not pull its image lost:1" in reason["text"]
    assert Alert.objects.filter(kind=ALERT, subject="lost:1", cleared_at=None).exists()


def test_waiting_tasks_are_read_once_for_all_held_images(loop: Loop) -> None:
    cells = [loop.cell(f"cell-{number}", cpu=1000) for number in range(3)]
    for image in ("lost:1", "lost:2"):
        fail_to_pull(loop, cells, loop.submit(replicas=3, image=image, resources=SMALL))
    with CaptureQueriesContext(connection) as captured:
        assert hold_images(now=clock.now()) == 6
    queries = [query for query in captured if "g.counts[2] > 0" in query["sql"]]
    assert len(queries) == 1
    assert Task.objects.filter(not_before__gt=clock.now() + timedelta(seconds=50)).count() == 6


def test_failures_of_many_groups_in_one_outage_count_once(loop: Loop) -> None:
    cells = [loop.cell(f"cell-{number}", cpu=1000) for number in range(3)]
    for _ in range(4):
        fail_to_pull(loop, cells, loop.submit(replicas=3, image="lost:1", resources=SMALL))
    hold_images(now=clock.now())
    assert set(ImageFailure.objects.values_list("failures", flat=True)) == {1}
    assert not Task.objects.filter(not_before__gt=clock.now() + timedelta(seconds=61)).exists()
    ImageFailure.objects.update(failed_at=clock.now() - timedelta(seconds=61))
    Task.objects.exclude(pk__in=Task.objects.order_by("-pk")[:3]).update(
        not_before=clock.now() + timedelta(hours=1)
    )
    Task.objects.filter(pk__in=Task.objects.order_by("-pk")[:3]).update(
        not_before=None, avoid_cell_ids=None
    )
    loop.place()
    for attempt in Attempt.objects.filter(released_at=None):
        note_image_failures([(attempt.group_id, attempt.cell_id)], now=clock.now())
    assert set(ImageFailure.objects.values_list("failures", flat=True)) == {2}


def test_successful_pull_ends_the_back_off_of_its_image(loop: Loop) -> None:
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
