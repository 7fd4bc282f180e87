"""Groups with unreadable definitions raise an alert, and all other groups go on."""

import json
from datetime import timedelta
from typing import Any

import pytest

from controlplane import clock
from controlplane.commands.cells.messages import Beat, answer_heartbeats
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.contract.messages.orders import Sync
from controlplane.domain.cells.keys import CellAddress
from controlplane.models import Alert, Attempt, Cell, Job
from controlplane.queries.sql import execute
from tests.integration.loop.conftest import FakeCell, Loop

# An option of a newer version, missing facts, and one of the wrong type.
POISON: list[dict[str, Any]] = [
    {"novelty": 1},
    {"inputs": None},
    {"inputs": [{"path": "/in/part", "from_group": "nobody"}]},
    {"command": [1]},
]


def poison(job: Job, launch: dict[str, Any]) -> None:
    statement = "UPDATE controlplane_taskgroup SET launch = launch || %s::jsonb WHERE job_id = %s"
    execute(statement, [json.dumps(launch), job.pk])


def beat_together(*cells: FakeCell) -> None:
    """Their heartbeats are answered in one group; whatever they should have, they have not."""
    beats = []
    for fake_cell in cells:
        fake_cell.seq += 1
        cell = Cell.objects.get(name=fake_cell.name)
        address = CellAddress(cell.pk, fake_cell.name, "one", fake_cell.key, salt=cell.key_salt)
        beats.append(Beat(address, fake_cell.seq, {}))
    answer_heartbeats(beats, now=clock.now())


def open_alerts() -> list[tuple[str, str]]:
    return list(Alert.objects.filter(cleared_at=None).values_list("kind", "subject"))


@pytest.mark.parametrize("launch", POISON, ids=str)
def test_heartbeats_are_answered_despite_an_unreadable_group(
    loop: Loop, launch: dict[str, Any]
) -> None:
    poisoned = loop.cell("cell-1")
    stopped, broken = loop.submit(name="stopped"), loop.submit(name="broken")
    loop.place()
    well = loop.cell("cell-2", cpu=1000)
    other = loop.submit(name="other")
    Cell.objects.filter(name="cell-1").update(state="CORDONED")
    loop.place()
    cancel_job(job_id=stopped.pk, reason="", force=False, actor="me", now=clock.now())
    poison(broken, launch)
    Attempt.objects.update(created_at=clock.now() - timedelta(seconds=8))
    loop.wire.sent.clear()
    beat_together(poisoned, well)
    [sync], [also] = poisoned.orders(), well.orders()
    assert isinstance(sync, Sync)
    assert isinstance(also, Sync)
    (attempt,) = loop.attempts(stopped)
    assert ([stop.uid for stop in sync.orders.stops], sync.orders.runs) == ([str(attempt.uid)], ())
    (attempt,) = loop.attempts(other)
    assert [run.uid for run in also.orders.runs] == [str(attempt.uid)]
    [(kind, subject)] = open_alerts()
    group = broken.groups.get()
    assert (kind, subject) == ("shape_unreadable", f"group {group.pk}")


@pytest.mark.parametrize("launch", POISON, ids=str)
def test_orders_placed_with_an_unreadable_group_are_sent_at_once(
    loop: Loop, launch: dict[str, Any]
) -> None:
    broken = loop.submit(name="broken", resources={"cpu": 4})
    loop.submit(name="sound", resources={"cpu": 1})
    poison(broken, launch)
    one, two = loop.cell("cell-1"), loop.cell("cell-2", cpu=1000)
    loop.place()
    assert len(loop.attempts(broken)) == 1
    assert one.run_orders() == []
    assert len(two.run_orders()) == 1
    assert [kind for kind, _ in open_alerts()] == ["shape_unreadable"]


def test_group_that_is_readable_again_is_started(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit()
    loop.place()
    [uid] = cell.run_orders()
    Attempt.objects.update(created_at=clock.now() - timedelta(seconds=8))
    poison(job, {"novelty": 1})
    assert cell.beat().orders.runs == ()
    poison(job, {"novelty": None})
    [run] = cell.beat().orders.runs
    assert run.uid == uid
