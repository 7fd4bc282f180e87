"""Lists of pending tasks are the same whether few or many are pending, with withdrawn ones."""

from datetime import timedelta

import pytest

from controlplane import clock
from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Task
from controlplane.queries.views import tasks
from controlplane.queries.views.tasks import TaskFilter, find_tasks
from tests.integration.loop.machine import Loop

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("few", [10_000, 0])
def test_pending_tasks_are_listed_newest_first_once_each(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(tasks, "FEW_PENDING", few)
    cell = loop.cell()
    ended = loop.submit()
    loop.place()
    cell.end(loop.attempts(ended)[0], S.SUCCEEDED, exit_code=0)
    withdrawn = loop.submit()
    loop.place()
    Attempt.objects.filter(released_at=None).update(start_before=clock.now() - timedelta(seconds=1))
    loop.converge()
    waiting = loop.submit()
    found = [
        int(task["id"])
        for task in find_tasks(
            TaskFilter(states=[S.PENDING]), before=None, limit=10, now=clock.now()
        )
    ]
    expected = Task.objects.filter(job_id__in=[withdrawn, waiting]).order_by("-id")
    assert Task.objects.filter(state=int(S.PENDING), attempt_open=True).count() == 1
    assert found == list(expected.values_list("id", flat=True))
    newest = found[0]
    older = find_tasks(TaskFilter(states=[S.PENDING]), before=newest, limit=10, now=clock.now())
    assert [int(task["id"]) for task in older] == found[1:]
