"""S0.6: most of a pool falls silent at once, our own clock jumps, a cell returns with a past."""

from datetime import timedelta

import pytest

from controlplane import clock
from controlplane.commands.tenancy.pools import confirm_loss
from controlplane.contract.messages.reports import AttemptReport, Goodbye, HeldAttempt, Register
from controlplane.contract.states import TaskState as S
from controlplane.domain.errors import Conflict, NotFound
from controlplane.models import (
    Alert,
    Attempt,
    AuditLine,
    Cell,
    CellLease,
    InboxProbe,
    Job,
    Pool,
    TickState,
)
from controlplane.queries.views.cells import get_cell
from controlplane.queries.views.pools import get_pool
from controlplane.ticks import convergence
from tests.integration.loop.conftest import FakeCell
from tests.scenarios.stage import Stage

FOUR = ("cell-1", "cell-2", "cell-3", "cell-4")
WHOLE = {"cpu": 4, "memory": "64Mi"}


def four(stage: Stage) -> tuple[list[FakeCell], Job]:
    """Four cells, and a task that runs on each."""
    cells = [stage.cell(name) for name in FOUR]
    job = stage.submit(resources=WHOLE, replicas=4)
    stage.place()
    stage.start(*stage.newest(job))
    return cells, job


def states() -> list[str]:
    return list(Cell.objects.order_by("name").values_list("state", flat=True))


def alerts() -> list[tuple[str, str]]:
    """Those that are open, but about placement, which no scenario here has run by itself."""
    found = Alert.objects.filter(cleared_at=None).exclude(kind="tick_late")
    found = found.order_by("kind", "subject")
    return list(found.values_list("kind", "subject"))


def pass_time(stage: Stage, seconds: float, *silent: FakeCell) -> None:
    """Time passes, tick by tick."""
    for _ in range(round(seconds / 5)):
        stage.wait(5, *silent)
        stage.converge()


def test_mass_loss_is_held_when_most_of_a_pool_is_silent(stage: Stage) -> None:
    cells, job = four(stage)
    pass_time(stage, 300, *cells[:3])
    assert (states(), stage.states(job)) == (["READY"] * 4, ["RUNNING"] * 4)
    assert alerts() == [("mass_loss", "default")]
    assert "3 of the 4 cells" in Alert.objects.get(kind="mass_loss").text
    assert get_pool("default")["loss_held_at"] is not None
    pass_time(stage, 60)
    assert (states(), stage.states(job)) == (["READY"] * 4, ["RUNNING"] * 4)
    assert (alerts(), get_pool("default")["loss_held_at"]) == ([], None)
    assert [task.preemption_count for task in stage.tasks(job)] == [0, 0, 0, 0]
    stage.check()


def test_cells_that_fall_silent_within_one_lease_count_together(stage: Stage) -> None:
    cells, _ = four(stage)
    pass_time(stage, 20, cells[0])
    pass_time(stage, 60, *cells[:3])
    assert states() == ["READY"] * 4


def test_cells_that_die_one_by_one_are_lost_without_a_hold(stage: Stage) -> None:
    cells, _ = four(stage)
    for number in range(1, 4):
        pass_time(stage, 45, *cells[:number])
        assert states() == ["LOST"] * number + ["READY"] * (4 - number)
    assert "mass_loss" not in dict(alerts())


def test_cells_still_silent_after_a_hold_are_lost_one_lease_later(stage: Stage) -> None:
    cells, job = four(stage)
    pass_time(stage, 60, *cells[:3])
    pass_time(stage, 30, *cells[:2])
    assert (states(), alerts()) == (["READY"] * 4, [])
    pass_time(stage, 15, *cells[:2])
    assert states() == ["LOST", "LOST", "READY", "READY"]
    assert sorted(stage.states(job)) == ["PENDING", "PENDING", "RUNNING", "RUNNING"]


def test_cell_that_returns_later_than_the_others_is_not_lost(stage: Stage) -> None:
    cells = [stage.cell(f"cell-{number}") for number in range(9)]
    pass_time(stage, 60, *cells[:5])
    pass_time(stage, 5, *cells[1:5])
    assert alerts() == []
    pass_time(stage, 30, *cells[1:5])
    pass_time(stage, 30)
    assert states() == ["READY"] * 9


def test_confirmed_mass_loss_requeues_the_tasks(stage: Stage) -> None:
    cells, job = four(stage)
    with pytest.raises(Conflict):
        confirm_loss(name="default", actor="ann", now=clock.now())
    with pytest.raises(NotFound):
        confirm_loss(name="elsewhere", actor="ann", now=clock.now())
    assert not AuditLine.objects.filter(action="confirm.loss").exists()
    pass_time(stage, 60, *cells[:3])
    confirm_loss(name="default", actor="ann", now=clock.now())
    line = AuditLine.objects.get(action="confirm.loss")
    assert (line.actor, line.subject) == ("ann", "pool default")
    assert line.text.endswith(": cell-1, cell-2, cell-3")
    pass_time(stage, 5, *cells[:3])
    assert states() == ["LOST", "LOST", "LOST", "READY"]
    assert alerts() == [("cell_lost", name) for name in FOUR[:3]]
    assert sorted(stage.states(job)) == ["PENDING"] * 3 + ["RUNNING"]
    with pytest.raises(Conflict):
        confirm_loss(name="default", actor="ann", now=clock.now())
    stage.check()


def test_confirmation_applies_to_one_mass_loss_only(stage: Stage) -> None:
    cells, _ = four(stage)
    pass_time(stage, 60, *cells[:3])
    confirm_loss(name="default", actor="ann", now=clock.now())
    pass_time(stage, 10)  # they all come back in the last moment
    assert states() == ["READY"] * 4
    pass_time(stage, 60, *cells[:3])
    assert (states(), alerts()) == (["READY"] * 4, [("mass_loss", "default")])


def test_pool_with_mass_loss_proceed_loses_cells_one_lease_later(stage: Stage) -> None:
    stage.policy(mass_loss="proceed")
    cells, _ = four(stage)
    pass_time(stage, 65, *cells[:3])
    assert (states(), alerts()) == (["READY"] * 4, [("mass_loss", "default")])
    pass_time(stage, 10, *cells[:3])
    assert states() == ["LOST", "LOST", "LOST", "READY"]
    assert alerts() == [("cell_lost", name) for name in FOUR[:3]]


def test_other_pools_and_draining_cells_do_not_count(stage: Stage) -> None:
    cells, _ = four(stage)
    stage.cell_of("other", "far")
    Cell.objects.filter(name="cell-1").update(state="DRAINING", ordered_state="DRAINING")
    pass_time(stage, 60, *cells[:2], stage.fake_cells["far"])
    assert states() == ["LOST", "LOST", "READY", "READY", "LOST"]


def test_cells_with_a_held_loss_get_no_tasks(stage: Stage) -> None:
    cells = [stage.cell(name) for name in FOUR]
    pass_time(stage, 60, *cells[:3])
    job = stage.submit(resources=WHOLE, replicas=2)
    stage.place()
    assert stage.cells(job) == ["cell-4"]
    pass_time(stage, 10)
    stage.place()
    assert len(stage.cells(job)) == 2


def begin_anew(*cells: FakeCell) -> list[str]:
    """Register the cells again without their journals; return the verdicts."""
    answers = []
    for cell in cells:
        if cell.incarnation != "two":
            cell.incarnation, cell.seq = "two", 0
        answers.append(str(cell.register().verdict))
    return answers


def test_cells_that_return_without_their_journals_end_the_hold(stage: Stage) -> None:
    cells, job = four(stage)
    pass_time(stage, 60, *cells)
    assert states() == ["READY"] * 4
    assert alerts() == [("cells_silent", "cells"), ("mass_loss", "default")]
    assert "returns without its journal" in Alert.objects.get(kind="mass_loss").text
    assert begin_anew(*cells) == ["refused"] * 4
    assert states() == ["READY"] * 4
    pass_time(stage, 5, *cells)
    assert states() == ["LOST"] * 4
    assert begin_anew(*cells) == ["accepted"] * 4
    pass_time(stage, 5)
    assert (states(), alerts()) == (["READY"] * 4, [])
    assert get_pool("default")["loss_held_at"] is None
    stage.place()
    assert stage.states(job) == ["ASSIGNED"] * 4
    stage.check()


def test_return_of_one_cell_does_not_end_the_hold_of_the_others(stage: Stage) -> None:
    cells = [stage.cell(f"cell-{number}") for number in range(1, 6)]
    pass_time(stage, 60, *cells)
    begin_anew(cells[0])
    pass_time(stage, 60, *cells)
    assert states() == ["LOST"] + ["READY"] * 4
    assert begin_anew(cells[0]) == ["accepted"]
    pass_time(stage, 60, *cells[1:])
    assert (states(), alerts()) == (["READY"] * 5, [("mass_loss", "default")])


def test_duplicate_cell_is_refused_and_does_not_count_as_returned(stage: Stage) -> None:
    cells, _ = four(stage)
    duplicate = FakeCell(stage, "cell-1", cells[0].capacity)
    duplicate.incarnation = "two"
    for _ in range(12):
        assert duplicate.register().verdict == "refused"
        pass_time(stage, 5)
    assert (states(), alerts()) == (["READY"] * 4, [("cell_twin", "cell-1")])
    # The duplicate was there while the cell reported: nothing is known of the silent one.
    pass_time(stage, 60, *cells[:3])
    assert states() == ["READY"] * 4
    assert ("mass_loss", "default") in alerts()


def test_editing_a_pool_keeps_its_mass_loss_hold(stage: Stage) -> None:
    cells, _ = four(stage)
    pass_time(stage, 60, *cells[:3])
    held_at = Pool.objects.get().loss_held_at
    stage.policy(preemption=False)
    assert Pool.objects.get().loss_held_at == held_at


# Whose fault is the silence?


def test_no_cell_is_lost_while_the_inbox_is_silent(stage: Stage) -> None:
    cell = stage.cell()
    stage.running()
    pass_time(stage, 20)
    for _ in range(60):  # the inbox is away: neither probes nor heartbeats arrive
        stage.passed += timedelta(seconds=5)
        convergence.run(memory=stage.memory)
    assert states() == ["READY"]
    stage.record_probes()
    cell.beat(*Attempt.objects.all())
    pass_time(stage, 60)
    assert states() == ["READY"]


def test_cell_is_shown_silent_until_it_reports_or_is_lost(stage: Stage) -> None:
    cell = stage.cell()
    pass_time(stage, 20)
    assert not get_cell(cell.name)["silent"]
    stage.wait(11, cell)
    stage.converge()
    assert get_cell(cell.name)["silent"]
    stage.wait(1)
    stage.converge()
    assert not get_cell(cell.name)["silent"]
    stage.lose(cell)
    assert not get_cell(cell.name)["silent"]


def test_cell_is_lost_only_after_the_inbox_worked_late_in_its_lease(stage: Stage) -> None:
    stage.cell()
    pass_time(stage, 20)
    stage.passed += timedelta(seconds=5)
    now = stage.now()
    long_ago, just_now = now - timedelta(seconds=60), now - timedelta(seconds=1)
    CellLease.objects.update(last_message_at=long_ago, expires_at=just_now, silent_ticks=9)
    InboxProbe.objects.update(delivered_until=now - timedelta(seconds=7))
    convergence.run(memory=stage.memory)
    assert states() == ["READY"]
    stage.record_probes()
    stage.passed += timedelta(seconds=5)
    convergence.run(memory=stage.memory)
    assert states() == ["LOST"]


def test_cells_have_a_lease_to_report_after_a_convergence_stall(stage: Stage) -> None:
    cell = stage.cell()
    stage.running()
    pass_time(stage, 20)
    stage.passed += timedelta(seconds=600)
    for _ in range(6):
        stage.wait(4.9, cell)
        convergence.run(memory=stage.memory)
    assert states() == ["READY"]
    assert ("control_plane_gap", "convergence") in alerts()
    for _ in range(2):
        stage.wait(5, cell)
        convergence.run(memory=stage.memory)
    assert states() == ["LOST"]


def jump(stage: Stage, hours: float) -> None:
    """The clock of the database is put forward, or back."""
    stage.passed += timedelta(hours=hours)


def tick(stage: Stage, seconds: float, *silent: FakeCell) -> None:
    """Send ticks as beat does, without the time of the last one."""
    for _ in range(round(seconds / 5)):
        stage.wait(5, *silent)
        convergence.run(memory=stage.memory)


@pytest.mark.parametrize("hours", [5, -5])
def test_clock_jump_does_not_lose_a_live_cell(stage: Stage, hours: float) -> None:
    stage.cell()
    job, _ = stage.running()
    tick(stage, 60)
    jump(stage, hours)
    tick(stage, 120)
    assert (states(), stage.states(job)) == (["READY"], ["RUNNING"])


@pytest.mark.parametrize("hours", [5, -5])
def test_dead_cell_is_lost_despite_a_clock_jump(stage: Stage, hours: float) -> None:
    cell = stage.cell()
    job, _ = stage.running()
    tick(stage, 60)
    jump(stage, hours)
    tick(stage, 25, cell)
    assert states() == ["READY"]
    tick(stage, 45, cell)
    assert (states(), stage.states(job)) == (["LOST"], ["PENDING"])


def test_no_cell_is_lost_when_the_inbox_dies_with_a_clock_jump(stage: Stage) -> None:
    stage.cell()
    stage.running()
    tick(stage, 60)
    jump(stage, -5)
    for _ in range(60):
        stage.passed += timedelta(seconds=5)
        convergence.run(memory=stage.memory)
    assert states() == ["READY"]


def test_lost_order_is_sent_again_after_the_clock_was_set_back(stage: Stage) -> None:
    cell = stage.cell()
    stage.placed()
    stage.wire.sent.clear()
    jump(stage, -5)
    stage.wait(5, cell)
    assert len(cell.beat().orders.runs) == 1


# Cells with a past.


def test_reports_of_a_returned_lost_cell_are_not_counted_twice(stage: Stage) -> None:
    cell, other = stage.cell(), stage.cell("cell-2")
    stage.policy(selector="concentrated")
    job, first = stage.running()
    home = stage.fake_cell_of(first)
    stage.lose(home)
    stage.place()
    _, second = stage.attempts(job)
    stage.start(second)
    # It never knew: its container ran on, and has come to its end.
    assert home.beat(first).draw_anew
    assert home.register().verdict == "draw_anew"
    home.end(first, S.SUCCEEDED, exit_code=0)
    assert stage.states(job) == ["RUNNING"]
    stage.end(second, S.FAILED, exit_code=3)
    assert stage.states(job) == ["FAILED"]
    assert stage.counts(job) == {"main": {"FAILED": 1}}
    assert stage.counters(job) == (1, 1, 0)
    assert {cell.name, other.name} == {home.name, stage.fake_cell_of(second).name}
    stage.check()


def test_cell_name_is_refused_to_another_incarnation_during_its_lease(stage: Stage) -> None:
    cell = stage.cell()
    job, attempt = stage.running()
    duplicate = FakeCell(stage, "cell-1", cell.capacity)
    duplicate.incarnation = "two"
    assert duplicate.register().verdict == "refused"
    assert alerts() == [("cell_twin", "cell-1")]
    duplicate.report(AttemptReport(str(attempt.uid), 0, S.FAILED, exit_code=1))
    assert duplicate.beat().draw_anew
    assert stage.states(job) == ["RUNNING"]
    stage.lose(cell)
    assert duplicate.register().verdict == "accepted"
    assert (states(), alerts()) == (["READY"], [])


def inventory(cell: FakeCell, *attempts: Attempt) -> None:
    """It registers again, and has containers of these attempts."""
    held = tuple(HeldAttempt(str(attempt.uid), S.RUNNING) for attempt in attempts)
    body = Register(
        cell.capacity, drivers=("docker",), task_types=("container",), inventory=held
    ).body()
    cell.send(body)


@pytest.mark.parametrize("is_new", [False, True])
def test_cell_with_unexpected_attempts_is_quarantined_until_they_stop(
    stage: Stage, is_new: bool
) -> None:
    fake_cell = stage.cell()
    _, first = stage.running()
    _, second = stage.running(name="second")
    if is_new:
        stage.lose(fake_cell)
        fake_cell.incarnation, fake_cell.seq = "two", 0
    else:
        stage.is_tampered = True
        Attempt.objects.filter(pk=first.pk).update(
            state=S.KILLED, finished_at=stage.now(), released_at=stage.now()
        )
    inventory(fake_cell, first, second)
    cell = Cell.objects.get()
    assert (cell.state, cell.quarantined_for) == ("QUARANTINED", "orphans")
    count = "2 attempts" if is_new else "1 attempt"
    assert cell.state_reason == f"it registered with {count} that it must not have"
    stopped = {stop.uid for stop in fake_cell.beat(first, second).orders.stops}
    assert stopped == {str(first.uid), str(second.uid)} - ({""} if is_new else {str(second.uid)})
    stage.converge()
    assert states() == ["QUARANTINED"]
    fake_cell.beat(*([] if is_new else [second]))
    assert states() == ["READY"]


def test_restarted_cell_with_its_own_attempts_is_ready(stage: Stage) -> None:
    cell = stage.cell()
    _, attempt = stage.running()
    inventory(cell, attempt)
    assert states() == ["READY"]


@pytest.mark.parametrize("ordered", ["READY", "DRAINING"])
def test_cell_that_shut_down_in_order_raises_no_alert(stage: Stage, ordered: str) -> None:
    fake_cell = stage.cell()
    Cell.objects.update(state=ordered, ordered_state=ordered)
    del stage.fake_cells["cell-1"]
    fake_cell.send(Goodbye(0 if ordered == "READY" else 120).body())
    tick(stage, 200)
    cell = Cell.objects.get()
    assert cell.state == "LOST"
    assert cell.state_reason.startswith("shut down in order, silent since ")
    assert ("cell_lost", "cell-1") not in alerts()


def test_departed_cell_with_work_or_without_a_successor_raises_an_alert(
    stage: Stage,
) -> None:
    leaving, followed = stage.cell(), stage.cell("cell-2")
    stage.policy(selector="concentrated")
    _, attempt = stage.running()
    busy = stage.fake_cell_of(attempt)
    [idle] = [cell for cell in (leaving, followed) if cell is not busy]
    stage.fake_cells.clear()
    busy.send(Goodbye(0).body())
    idle.send(Goodbye(120).body())
    tick(stage, 200)
    assert states() == ["LOST", "LOST"]
    assert [item for item in alerts() if item[0] == "cell_lost"] == [
        ("cell_lost", "cell-1"),
        ("cell_lost", "cell-2"),
    ]


def test_registration_after_a_goodbye_clears_the_departure(stage: Stage) -> None:
    cell = stage.cell()
    cell.send(Goodbye(0).body())
    assert CellLease.objects.get().left_at is not None
    cell.register()
    assert CellLease.objects.get().left_at is None


def test_cells_that_shut_down_in_order_are_no_mass_loss(stage: Stage) -> None:
    cells = [stage.cell(name) for name in FOUR]
    for cell in cells[:3]:
        cell.send(Goodbye(0).body())
    pass_time(stage, 60, *cells[:3])
    assert states() == ["LOST", "LOST", "LOST", "READY"]
    assert TickState.objects.get(name="convergence").counts.get("losses_held", 0) == 0
    assert alerts() == []
