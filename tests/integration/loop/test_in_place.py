"""A task whose own program failed is tried again on the same cell, if that still has room."""

from controlplane.contract.states import TaskState as S
from controlplane.models import Task
from tests.integration.loop.conftest import Loop


def test_failed_task_is_retried_on_its_cell_while_there_is_room(loop: Loop) -> None:
    cells = {cell.name: cell for cell in (loop.cell("cell-1"), loop.cell("cell-2"))}
    job = loop.submit(retries={"failure": 2}, resources={"cpu": 2, "memory": "64Mi"})
    loop.place()
    [first] = loop.attempts(job)
    there = cells[first.cell.name]
    other = next(cell for cell in cells.values() if cell is not there)
    there.end(first, S.FAILED, exit_code=1)
    Task.objects.filter(job=job).update(not_before=None)
    # Fuller than the other, and work is spread: no task would go there without a reason.
    filler = loop.submit(resources={"cpu": 1, "memory": "64Mi"})
    Task.objects.filter(job=filler).update(prefer_cell_id=first.cell_id)
    loop.place()
    second = loop.attempts(job)[-1]
    assert (second.number, second.cell_id) == (2, first.cell_id)
    # Where there is no room any more it goes elsewhere at once.
    there.end(second, S.FAILED, exit_code=1)
    full = loop.submit(resources={"cpu": 2, "memory": "64Mi"})
    Task.objects.filter(job=full).update(prefer_cell_id=first.cell_id)
    loop.place()
    assert loop.attempts(full)[0].cell_id == first.cell_id
    Task.objects.filter(job=job).update(not_before=None)
    loop.place()
    assert loop.attempts(job)[-1].cell.name == other.name
