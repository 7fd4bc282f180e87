"""Cells that are in quarantine for several things at once: none of them is forgotten."""

from datetime import timedelta
from uuid import UUID

import pytest

from controlplane import clock
from controlplane.commands.cells.operate import unquarantine_cell
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.contract.messages.reports import Heartbeat, HeldAttempt, Register
from controlplane.contract.states import TaskState as S
from controlplane.models import Alert, Attempt, Cell
from tests.integration.loop.conftest import FakeCell, Loop

UNKNOWN = HeldAttempt(str(UUID(int=7)), S.RUNNING)
FULL = "the disk of its folder is full"


def state() -> tuple[str, str, str]:
    cell = Cell.objects.get()
    return cell.state, cell.quarantined_for, cell.state_reason


def open_alerts() -> list[str]:
    found = Alert.objects.filter(cleared_at=None).order_by("kind")
    return list(found.values_list("kind", flat=True))


def fail(*, seconds: float) -> None:
    """As if whatever was sent there had failed: so long, from now on, it is left alone."""
    until = clock.now() + timedelta(seconds=seconds)
    Cell.objects.update(state="QUARANTINED", quarantined_for="failures", quarantined_until=until)
    Alert.objects.create(
        kind="cell_failing", subject="cell-1", raised_at=until, last_raised_at=until
    )


def stop_in_vain(loop: Loop) -> Attempt:
    """A stop that is overdue, of an attempt on the cell."""
    job = loop.submit()
    loop.place()
    (attempt,) = loop.attempts(job)
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    long_ago = clock.now() - timedelta(hours=1)
    Attempt.objects.update(created_at=long_ago, finished_at=long_ago, stop_forced_at=long_ago)
    return attempt


def register_with_unknown_attempt(cell: FakeCell) -> None:
    cell.send(
        Register(
            cell.capacity, drivers=("docker",), task_types=("container",), inventory=(UNKNOWN,)
        ).body()
    )


def test_unfit_cell_with_an_overdue_stop_raises_the_stop_alert(loop: Loop) -> None:
    cell = loop.cell()
    attempt = stop_in_vain(loop)
    cell.send(Heartbeat((), unfit=FULL).body())
    for _ in range(2):
        loop.converge()
        assert (state(), open_alerts()) == (("QUARANTINED", "unfit", FULL), ["stop_unconfirmed"])
    # It is fit again, but has not confirmed.
    cell.beat()
    assert state() == ("QUARANTINED", "stops", "1 stop is not confirmed")
    loop.converge()
    assert open_alerts() == ["stop_unconfirmed"]
    cell.end(attempt, S.KILLED)
    loop.converge()
    assert (state()[0], open_alerts()) == ("READY", [])


def test_stop_alert_closes_when_an_unfit_cell_confirms(loop: Loop) -> None:
    cell = loop.cell()
    attempt = stop_in_vain(loop)
    cell.send(Heartbeat((), unfit=FULL).body())
    loop.converge()
    cell.end(attempt, S.KILLED)
    loop.converge()
    assert (state(), open_alerts()) == (("QUARANTINED", "unfit", FULL), [])


def test_cell_that_is_fit_and_confirmed_its_stop_is_ready(loop: Loop) -> None:
    cell = loop.cell()
    attempt = stop_in_vain(loop)
    cell.send(Heartbeat((), unfit=FULL).body())
    loop.converge()
    cell.end(attempt, S.KILLED)
    cell.beat()
    assert (state()[0], open_alerts()) == ("READY", [])


def test_expired_quarantine_continues_while_a_stop_is_overdue(loop: Loop) -> None:
    cell = loop.cell()
    attempt = stop_in_vain(loop)
    fail(seconds=100)
    loop.converge()
    assert (state()[1], open_alerts()) == ("failures", ["cell_failing", "stop_unconfirmed"])
    Cell.objects.update(quarantined_until=clock.now())
    for _ in range(2):
        loop.converge()
        assert state() == ("QUARANTINED", "stops", "1 stop is not confirmed")
        assert open_alerts() == ["stop_unconfirmed"]
    assert Cell.objects.get().trusted_at is not None
    loop.submit(name="other")
    loop.place()
    assert cell.run_orders() == [str(attempt.uid)]
    cell.end(attempt, S.KILLED)
    loop.converge()
    assert (state()[0], open_alerts()) == ("READY", [])


@pytest.mark.parametrize("cause", ["unfit", "stops", "failures"])
def test_quarantine_continues_until_unexpected_attempts_are_gone(loop: Loop, cause: str) -> None:
    cell = loop.cell()
    attempt = stop_in_vain(loop)
    if cause == "unfit":
        cell.send(Heartbeat((), unfit=FULL).body())
    elif cause == "failures":
        fail(seconds=100)
    else:
        loop.converge()
    assert state()[1] == cause
    register_with_unknown_attempt(cell)
    reason = "it registered with 1 attempt that it must not have"
    with_unknown = ("QUARANTINED", "orphans", reason)
    Cell.objects.filter(quarantined_until__isnull=False).update(quarantined_until=clock.now())
    cell.send(Heartbeat((UNKNOWN,)).body())
    loop.converge()
    assert (state(), "stop_unconfirmed" in open_alerts()) == (with_unknown, True)
    cell.beat()
    loop.converge()
    assert state() == ("QUARANTINED", "stops", "1 stop is not confirmed")
    cell.end(attempt, S.KILLED)
    loop.converge()
    assert (state()[0], open_alerts()) == ("READY", [])


def test_unexpected_attempts_do_not_shorten_a_failure_quarantine(loop: Loop) -> None:
    cell = loop.cell()
    fail(seconds=100)
    register_with_unknown_attempt(cell)
    cell.beat()
    loop.converge()
    assert (state()[:2], open_alerts()) == (("QUARANTINED", "failures"), ["cell_failing"])
    Cell.objects.update(quarantined_until=clock.now())
    loop.converge()
    assert (state()[0], open_alerts()) == ("READY", [])
    assert Cell.objects.get().trusted_at is not None


def test_unquarantined_cell_is_quarantined_again_by_the_next_tick(loop: Loop) -> None:
    loop.cell()
    stop_in_vain(loop)
    loop.converge()
    unquarantine_cell(name="cell-1", actor="me", now=clock.now())
    assert (state()[0], open_alerts()) == ("READY", [])
    loop.converge()
    assert (state()[1], open_alerts()) == ("stops", ["stop_unconfirmed"])
