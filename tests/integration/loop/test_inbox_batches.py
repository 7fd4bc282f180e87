"""Batches of reports of which one cannot be recorded: nothing is acknowledged that is not kept."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection

from controlplane import clock
from controlplane.commands.convergence.cells import lose_silent_cells
from controlplane.commands.convergence.runner import RuleContext
from controlplane.contract.messages.reports import AttemptReport, Heartbeat
from controlplane.contract.states import TaskState as S
from controlplane.contract.wire import envelope, keys
from controlplane.contract.wire.queues import INBOX_QUEUES
from controlplane.domain.convergence.policy import Policy
from controlplane.inbox import batches
from controlplane.models import Attempt, Cell, CellLease, DeadLetter, InboxProbe, Job
from controlplane.queries.cells.keys import key_of, write_probe
from tests.integration.loop.conftest import FakeCell, Loop

# The database refuses each change of a poisoned attempt; from the second time on it is away.
POISON = """
CREATE SEQUENCE poisoned;
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.uid = '{uid}' THEN
        IF nextval('poisoned') > {refusals} THEN
            RAISE 'away' USING ERRCODE = '57P01';
        END IF;
        RAISE 'poisoned';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse BEFORE UPDATE ON controlplane_attempt
    FOR EACH ROW EXECUTE FUNCTION refuse();
"""
CURE = """
DROP TRIGGER IF EXISTS refuse ON controlplane_attempt;
DROP FUNCTION IF EXISTS refuse;
DROP SEQUENCE IF EXISTS poisoned;
"""


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture(autouse=True)
def cured(loop: Loop) -> Iterator[None]:
    yield
    execute(CURE)


def two_running(loop: Loop) -> tuple[FakeCell, Job, Attempt, Attempt]:
    """A job of two tasks on a cell."""
    cell = loop.cell()
    job = loop.submit(replicas=2)
    loop.place()
    first, second = loop.attempts(job)
    return cell, job, first, second


def beat_of(cell: FakeCell) -> str:
    """Seal a heartbeat, which the test delivers."""
    cell.seq += 1
    return envelope.seal(
        keys.mac_key(cell.key, keys.TO_CONTROL),
        cell=cell.name,
        incarnation=cell.incarnation,
        seq=cell.seq,
        body=Heartbeat(()).body(),
    )


def ended(attempt: Attempt) -> AttemptReport:
    return AttemptReport(str(attempt.uid), 0, S.SUCCEEDED, exit_code=0, gone=True)


def test_unrecordable_report_becomes_an_acknowledged_dead_letter(loop: Loop) -> None:
    """Else its cell would send it again and again, with all that follow."""
    cell, job, first, second = two_running(loop)
    execute(POISON.format(uid=second.uid, refusals=99))
    cell.report(ended(first), ended(second))
    assert loop.states(job) == ["SUCCEEDED", "ASSIGNED"]
    assert DeadLetter.objects.count() == 1
    assert cell.beat().acked == cell.last_report


def test_nothing_is_acknowledged_if_the_database_fails_mid_batch(loop: Loop) -> None:
    cell, job, first, second = two_running(loop)
    acked = cell.beat(first, second).acked
    execute(POISON.format(uid=second.uid, refusals=1))
    with pytest.raises(OperationalError):
        cell.report(ended(first), ended(second))
    execute(CURE)
    assert cell.beat(second).acked == acked
    # So the cell sends both again.
    cell.report(ended(first), ended(second), after=acked)
    assert loop.states(job) == ["SUCCEEDED", "SUCCEEDED"]
    assert cell.beat().acked == cell.last_report


def test_changed_key_of_a_cell_is_used_after_its_first_message(loop: Loop) -> None:
    cell = loop.cell()
    cell.beat()
    Cell.objects.update(key_salt="ab" * 16)
    cell.key = key_of(Cell.objects.get())
    for _ in range(2):
        cell.send(Heartbeat(()).body())
    assert CellLease.objects.get().heartbeat_seq == cell.seq


def test_probe_is_not_recorded_while_heartbeats_before_it_are_not_applied(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recorded probe permits declaring the cells lost whose heartbeats came before it."""

    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("away")

    cell = loop.cell()
    loop.converge()
    received = InboxProbe.objects.get(shard=0).delivered_until
    with monkeypatch.context() as outage:
        outage.setattr(batches, "answer_heartbeats", away)
        with pytest.raises(OperationalError):
            loop.inbox.apply([beat_of(cell), write_probe(0, sent_at=clock.now())])
    assert InboxProbe.objects.get(shard=0).delivered_until == received
    loop.inbox.apply([beat_of(cell), write_probe(0, sent_at=clock.now())])
    assert InboxProbe.objects.get(shard=0).delivered_until != received


def test_probe_from_before_an_outage_does_not_prove_what_was_sent_since(loop: Loop) -> None:
    loop.converge()
    sent_at = clock.now() - timedelta(minutes=1)
    InboxProbe.objects.update(delivered_until=sent_at - timedelta(minutes=1))
    loop.inbox.apply([write_probe(0, sent_at=sent_at)])
    assert InboxProbe.objects.get(shard=0).delivered_until == sent_at
    loop.inbox.apply([write_probe(0, sent_at=sent_at - timedelta(seconds=30))])
    assert InboxProbe.objects.get(shard=0).delivered_until == sent_at


def test_probe_ahead_of_the_clock_proves_nothing_about_the_future(loop: Loop) -> None:
    """The clock was set back since it was sent."""
    loop.converge()
    InboxProbe.objects.update(delivered_until=clock.now() + timedelta(hours=1))
    loop.inbox.apply([write_probe(0, sent_at=clock.now() + timedelta(hours=1))])
    assert InboxProbe.objects.get(shard=0).delivered_until <= clock.now()


def test_cell_whose_heartbeats_wait_behind_an_old_probe_is_not_lost(loop: Loop) -> None:
    """The inbox was away; its first batch has the probes, and not yet the heartbeats."""
    cell = loop.cell()
    away_since = clock.now() - timedelta(minutes=1)
    silent = {"expires_at": away_since + timedelta(seconds=15), "silent_ticks": 9}
    CellLease.objects.update(last_message_at=away_since, **silent)
    for shard in range(len(INBOX_QUEUES)):
        probed = {"sent_at": away_since, "delivered_until": away_since}
        InboxProbe.objects.update_or_create(shard=shard, defaults=probed)
    texts = [write_probe(shard, sent_at=away_since) for shard in range(len(INBOX_QUEUES))]
    loop.inbox.apply(texts, list(INBOX_QUEUES))
    find = RuleContext(clock.now(), Policy(), frozenset({"silent_leases"}))
    assert not any(lose_silent_cells(find).values())
    cell.beat()
    assert Cell.objects.get().state == "READY"
