"""The progress of a drain: attempts left, attempts at its order, and the end of the longest."""

from datetime import timedelta

from controlplane import clock
from controlplane.commands.cells.operate import drain_cell, uncordon_cell
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Cell
from controlplane.queries.cells.drain import DrainProgress, load_drains
from controlplane.queries.views.cells import get_cell
from tests.integration.loop.conftest import FakeCell, Loop

SMALL = {"cpu": 0.1, "memory": "8Mi"}


def progress() -> DrainProgress:
    [found] = load_drains([Cell.objects.get(name="cell-1").pk]).values()
    return found


def begin(loop: Loop, cell: FakeCell, replicas: int = 1, **body: object) -> list[Attempt]:
    """Let the tasks of a job run on the cell, since a fixed instant."""
    job = loop.submit(replicas=replicas, **{"resources": SMALL, "max_task_failures": 9, **body})
    loop.place()
    for attempt in loop.attempts(job):
        cell.report(AttemptReport(str(attempt.uid), 0, S.RUNNING))
    return loop.attempts(job)


def test_ended_attempts_count_for_the_total_but_not_those_before_the_drain(loop: Loop) -> None:
    cell = loop.cell()
    before, *rest = begin(loop, cell, replicas=4)
    cell.end(before, S.SUCCEEDED, exit_code=0)
    drain_cell(name="cell-1", actor="olga", now=clock.now())
    assert (progress().left, progress().total) == (3, 3)
    cell.end(rest[0], S.SUCCEEDED, exit_code=0)
    assert (progress().left, progress().total) == (2, 3)
    for attempt in rest[1:]:
        cell.end(attempt, S.FAILED, exit_code=1)
    assert (progress().left, progress().total, progress().longest_until) == (0, 3, None)
    last = max(it.released_at for it in Attempt.objects.all() if it.released_at)
    assert progress().empty_since == last


def test_a_cell_without_attempts_is_empty_since_the_order(loop: Loop) -> None:
    cell = loop.cell()
    now = clock.now()
    drain_cell(name="cell-1", actor="olga", now=now)
    assert (progress().left, progress().total, progress().empty_since) == (0, 0, now)
    uncordon_cell(name="cell-1", actor="olga", now=now)
    begin(loop, cell)
    drain_cell(name="cell-1", actor="olga", now=now)
    assert (progress().left, progress().empty_since) == (1, None)


def test_the_longest_ends_at_its_time_limit_or_the_deadline_and_after_its_grace(loop: Loop) -> None:
    cell = loop.cell()
    [short] = begin(loop, cell, timeout_seconds=60, stop_grace_seconds=5)
    [long] = begin(loop, cell, timeout_seconds=7200, stop_grace_seconds=20)
    now = clock.now()
    drain_cell(name="cell-1", actor="olga", now=now, deadline_seconds=None)
    long.refresh_from_db()
    assert long.started_at is not None
    assert progress().longest_until == long.started_at + timedelta(seconds=7220)
    drain_cell(name="cell-1", actor="olga", now=now, deadline_seconds=600)
    assert progress().longest_until == now + timedelta(seconds=620)
    cell.end(long, S.SUCCEEDED, exit_code=0)
    short.refresh_from_db()
    assert short.started_at is not None
    assert progress().longest_until == short.started_at + timedelta(seconds=65)


def test_an_attempt_without_a_limit_has_no_end_and_the_deadline_spares_at_most_once(
    loop: Loop,
) -> None:
    cell = loop.cell()
    begin(loop, cell)
    drain_cell(name="cell-1", actor="olga", now=clock.now(), deadline_seconds=None)
    assert progress().longest_until is None
    uncordon_cell(name="cell-1", actor="olga", now=clock.now())
    begin(loop, cell, delivery="at_most_once", retries={"failure": 0})
    drain_cell(name="cell-1", actor="olga", now=clock.now(), deadline_seconds=60)
    assert (progress().left, progress().longest_until) == (2, None)


def test_the_document_of_a_cell_has_the_progress_only_while_it_drains(loop: Loop) -> None:
    cell = loop.cell()
    loop.cell("cell-2")
    [attempt] = begin(loop, cell, timeout_seconds=60)
    name = attempt.cell.name
    assert get_cell(name)["drain"] is None
    now = clock.now()
    drain_cell(name=name, actor="olga", now=now, deadline_seconds=0)
    until = now + timedelta(seconds=10)
    assert get_cell(name)["drain"] == {
        "left": 1,
        "total": 1,
        "longest_until": until,
        "empty_since": None,
    }
    assert get_cell("cell-2" if name == "cell-1" else "cell-1")["drain"] is None
    Cell.objects.filter(name=name).update(state="LOST")
    assert get_cell(name)["drain"] is None
