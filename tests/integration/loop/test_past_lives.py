"""Reports and attempts of a past incarnation of a cell do not count in the present one."""

from datetime import timedelta

import pytest

from controlplane import clock
from controlplane.contract.messages.orders import RegistrationResult
from controlplane.contract.messages.reports import AttemptReport, Goodbye, Heartbeat, Register
from controlplane.contract.states import TaskState as S
from controlplane.contract.wire.queues import INBOX_SHARDS
from controlplane.domain.convergence.policy import Policy
from controlplane.models import Attempt, Cell, CellLease, InboxProbe
from controlplane.queries.convergence.lost_cells import list_silent_leases
from tests.integration.loop.conftest import FakeCell, Loop


def begin_again(cell: FakeCell) -> FakeCell:
    """Lose the cell and register it in a new incarnation; return its past one."""
    Cell.objects.filter(name=cell.name).update(state="LOST")
    past = FakeCell.__new__(FakeCell)
    past.__dict__ |= cell.__dict__
    cell.incarnation, cell.seq = "two", 0
    assert cell.register().verdict == "accepted"
    past.seq = 1 << 40
    return past


@pytest.mark.parametrize("body", [Heartbeat(()).body(), Goodbye(600).body()])
def test_message_of_a_past_incarnation_does_not_renew_the_lease(
    loop: Loop, body: dict[str, object]
) -> None:
    past = begin_again(loop.cell())
    CellLease.objects.update(expires_at=clock.now() - timedelta(seconds=1))
    before = CellLease.objects.values().get()
    past.send(body)
    assert CellLease.objects.values().get() == before


def test_replayed_heartbeat_does_not_renew_the_lease(loop: Loop) -> None:
    """It is signed by the cell; an attacker recorded it, or the broker was restored."""
    cell = loop.cell()
    cell.beat()
    CellLease.objects.update(expires_at=clock.now() - timedelta(seconds=1))
    before = CellLease.objects.values().get()
    cell.seq -= 1
    cell.send(Heartbeat(()).body())
    assert CellLease.objects.values().get() == before


def test_restored_journal_is_detected_after_a_goodbye_in_the_same_batch(
    loop: Loop,
) -> None:
    """The Goodbye came first; otherwise it would cordon the restored cell, which goes on."""
    cell = loop.cell()
    held = cell.seq
    sent: list[str] = []
    loop.inbox, inbox = Collector(sent), loop.inbox  # type: ignore[assignment]
    cell.seq += 9
    cell.send(Goodbye(0).body())
    cell.seq = held
    cell.send(Register(cell.capacity, drivers=("docker",), task_types=("container",)).body())
    loop.inbox = inbox
    loop.inbox.apply(sent)
    answers = [order for order in cell.orders() if isinstance(order, RegistrationResult)]
    assert [answer.verdict for answer in answers][1:] == ["draw_anew"]


class Collector:
    """In place of the inbox: it keeps the messages of a batch."""

    def __init__(self, sent: list[str]) -> None:
        self._sent = sent

    def apply(self, raw: list[str]) -> None:
        self._sent += raw


def test_attempts_of_a_past_incarnation_end_when_the_cell_returns(loop: Loop) -> None:
    """Their loss was not written before: the tick that found the cell lost died after that."""
    cell = loop.cell(cpu=1000)
    job = loop.submit()
    loop.place()
    [attempt] = loop.attempts(job)
    cell.report(AttemptReport(str(attempt.uid), 0, S.RUNNING, started_at=1.0))
    begin_again(cell)
    assert Cell.objects.get().state == "READY"
    loop.converge()
    attempt.refresh_from_db()
    assert (attempt.state, attempt.reason) == (S.WORKER_FAILED, "cell_lost")
    assert attempt.released_at is not None
    loop.place()
    assert [item.incarnation for item in loop.attempts(job)] == ["one", "two"]


def test_restart_does_not_acknowledge_a_lost_report(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit()
    loop.place()
    [attempt] = loop.attempts(job)
    acked = cell.beat(attempt).acked
    cell.seq += 1  # the number of a report that is lost on its way
    lost = cell.seq
    assert cell.register().verdict == "accepted"
    assert cell.beat(attempt).acked == acked < lost
    # So the cell sends it again, and from there on all is acknowledged.
    cell.report(AttemptReport(str(attempt.uid), 0, S.RUNNING), after=acked)
    assert cell.beat(attempt).acked > lost
    assert Attempt.objects.get().state == S.RUNNING


@pytest.mark.parametrize("newest", ["heartbeat", "report"])
def test_register_with_an_older_number_is_answered_draw_anew(loop: Loop, newest: str) -> None:
    cell = loop.cell()
    job = loop.submit()
    loop.place()
    [attempt] = loop.attempts(job)
    for state in (S.BUILDING, S.RUNNING):
        if newest == "heartbeat":
            cell.beat(attempt)
        else:
            cell.report(AttemptReport(str(attempt.uid), 0, state))
    cell.seq -= 2 if newest == "heartbeat" else 3
    assert cell.register().verdict == "draw_anew"


@pytest.mark.parametrize("deaf", range(INBOX_SHARDS))
def test_cell_is_silent_only_if_every_inbox_shard_works(loop: Loop, deaf: int) -> None:
    loop.cell()
    now, policy = clock.now(), Policy()
    CellLease.objects.update(expires_at=now - timedelta(seconds=1))
    for shard in range(INBOX_SHARDS):
        InboxProbe.objects.create(shard=shard, sent_at=now, delivered_until=now)
    assert len(list_silent_leases(now, policy)) == 1
    InboxProbe.objects.filter(shard=deaf).update(delivered_until=now - timedelta(minutes=5))
    assert list_silent_leases(now, policy) == []
