"""Losing cells during other changes: a cell that reports stays; a held loss raises an alert.

Something happens before each statement in turn of the rule that loses cells: cells report, an
operator confirms, the process dies.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from threading import Thread
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from controlplane import clock
from controlplane.commands.cells.messages import Beat, answer_heartbeats
from controlplane.commands.convergence.cells import (
    clear_cells,
    lose_silent_cells,
    suspect_cells,
)
from controlplane.commands.convergence.runner import RuleContext
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.state.apply import apply
from controlplane.commands.tenancy.pools import confirm_loss
from controlplane.contract.messages.reports import AttemptReport, Goodbye
from controlplane.contract.states import TaskState as S
from controlplane.contract.wire.queues import INBOX_QUEUES
from controlplane.domain.cells.keys import CellAddress
from controlplane.domain.convergence.policy import Policy
from controlplane.domain.errors import Conflict
from controlplane.domain.state.effects import ChangeCell, Effects, RaiseAlert
from controlplane.domain.state.states import CellState
from controlplane.models import Alert, Attempt, Cell, CellLease, InboxProbe, Pool
from tests.integration.loop.conftest import FakeCell, Loop
from tests.integration.loop.deaths import at_statement, work_until_death
from tests.integration.loop.everything import ago

FOUR = [f"cell-{number}" for number in range(1, 5)]


@pytest.fixture
def four(loop: Loop) -> list[FakeCell]:
    for shard in range(len(INBOX_QUEUES)):
        InboxProbe.objects.create(shard=shard, sent_at=clock.now(), delivered_until=clock.now())
    return [loop.cell(name) for name in FOUR]


def is_lock_of_cells(sql: str) -> bool:
    """Return whether the statement locks the cells that a change found, before it writes them."""
    return "FROM controlplane_cell WHERE id = ANY" in sql and "FOR NO KEY UPDATE" in sql


def fall_silent(*names: str) -> None:
    """Reset the cells: these have been silent for long, the others not; no loss is held."""
    Cell.objects.update(state="READY")
    Pool.objects.update(loss_held_at=None, loss_confirmed_at=None)
    Alert.objects.all().delete()
    CellLease.objects.update(expires_at=ago(-30), last_message_at=ago(1), silent_ticks=0)
    long_ago = {"expires_at": ago(60), "last_message_at": ago(90), "silent_ticks": 9}
    CellLease.objects.filter(cell__name__in=names).update(**long_ago)


def lose() -> dict[str, int]:
    return dict(lose_silent_cells(RuleContext(clock.now(), Policy(), frozenset({"silent_leases"}))))


def meanwhile(work: Callable[[], None]) -> bool:
    """Return whether another process did it; one that waits for a lock is too late."""
    done = []

    def live() -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = '50ms'")
            with suppress(OperationalError, Conflict):
                work()
                done.append(True)
        finally:
            connection.close()

    thread = Thread(target=live)
    thread.start()
    thread.join()
    return bool(done)


def before_each_statement(begin: Callable[[], None], work: Callable[[], None]) -> Iterator[bool]:
    """The rule runs as often as it has statements, with `work` before another one; was it done?"""
    at, is_there = 0, True
    while is_there:
        begin()
        is_last, is_there, done = at_statement(at), False, False

        def watch(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
            nonlocal is_there, done
            if not is_there and is_last(sql):  # noqa: B023
                is_there, done = True, meanwhile(work)
            return execute(sql, *rest)

        with connection.execute_wrapper(watch):
            lose()
        if is_there:
            yield done
        at += 1
    assert at > 5


def beat(*cells: FakeCell) -> None:
    rows = {cell.name: cell for cell in Cell.objects.all()}
    beats = []
    for cell in cells:
        cell.seq += 1
        row = rows[cell.name]
        address = CellAddress(row.pk, cell.name, cell.incarnation, cell.key, salt=row.key_salt)
        beats.append(Beat(address, cell.seq, {}))
    answer_heartbeats(beats, now=clock.now())


def has_alert() -> bool:
    return Alert.objects.filter(kind="mass_loss", cleared_at=None).exists()


def is_held() -> bool:
    return Pool.objects.get(name="default").loss_held_at is not None


def test_heartbeats_during_a_mass_loss_decision_keep_the_pool_ready(four: list[FakeCell]) -> None:
    outcomes = set()
    for was_received in before_each_statement(lambda: fall_silent(*FOUR), lambda: beat(*four)):
        assert set(Cell.objects.values_list("state", flat=True)) == {"READY"}
        assert is_held() == has_alert() == (not was_received)
        outcomes.add(was_received)
    assert outcomes == {True, False}


def test_heartbeat_during_a_loss_decision_keeps_the_cell_ready(four: list[FakeCell]) -> None:
    outcomes = set()
    for was_received in before_each_statement(lambda: fall_silent("cell-1"), lambda: beat(four[0])):
        assert Cell.objects.get(name="cell-1").state == ("READY" if was_received else "LOST")
        outcomes.add(was_received)
    assert outcomes == {True, False}


def test_confirmation_does_not_interleave_with_a_loss_decision(four: list[FakeCell]) -> None:
    def confirm() -> None:
        confirm_loss(name="default", actor="ann", now=clock.now())

    for confirmed in before_each_statement(lambda: fall_silent(*FOUR), confirm):
        assert not confirmed
        assert is_held()
        assert has_alert()


def begin_held() -> None:
    """Let all cells report again, while their loss is still held."""
    fall_silent(*FOUR)
    lose()
    assert is_held()
    now = clock.now()
    CellLease.objects.update(expires_at=now + timedelta(30), last_message_at=now, silent_ticks=0)


@pytest.mark.parametrize(
    ("begin", "held"), [(lambda: fall_silent(*FOUR), True), (begin_held, False)]
)
def test_killed_loss_rule_keeps_hold_and_alert_consistent(
    four: list[FakeCell], begin: Callable[[], None], held: bool
) -> None:
    at, died = 0, True
    while died:
        begin()
        death = work_until_death(lose, at_statement(at))
        died, at = death.before is not None, at + 1
        assert is_held() == has_alert(), death.before
        lose()
        assert is_held() == has_alert() == held
    assert at > 5


# ------------------------------------------------------------------ changes of many cells


def test_cells_are_changed_in_lock_order(four: list[FakeCell]) -> None:
    ids = list(Cell.objects.order_by("-pk").values_list("pk", flat=True))
    ready = frozenset({CellState.READY})
    changes = [ChangeCell(pk, ready, CellState.CORDONED, "because") for pk in ids]
    assert apply(Effects(cells=changes), now=clock.now()).moved == sorted(ids)


def test_alerts_of_lost_cells_are_closed_in_one_statement(loop: Loop) -> None:
    names = [f"cell-{number}" for number in range(1, 13)]
    for name in names:
        loop.cell(name)
    InboxProbe.objects.create(shard=0, sent_at=clock.now(), delivered_until=clock.now())
    counts = []
    for silent in (names[:1], names[:5]):
        fall_silent(*silent)
        alerts = [RaiseAlert("stop_unconfirmed", name, "because") for name in silent]
        apply(Effects(alerts=alerts), now=clock.now())
        with CaptureQueriesContext(connection) as queries:
            assert lose()["cells_lost"] == len(silent)
        assert not Alert.objects.filter(kind="stop_unconfirmed", cleared_at=None).exists()
        counts.append(len(queries) - len(silent))
    assert counts[0] == counts[1]


def test_cell_lost_meanwhile_raises_no_quarantine_alert(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit()
    loop.place()
    [attempt] = loop.attempts(job)
    cell.report(AttemptReport(str(attempt.uid), 0, S.RUNNING))
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    instants = {"created_at": ago(700), "started_at": ago(650), "finished_at": ago(600)}
    Attempt.objects.update(**instants, stop_forced_at=ago(600))

    def lose_all() -> None:
        Cell.objects.update(state="LOST")

    def watch(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if is_lock_of_cells(sql):
            meanwhile(lose_all)
        return execute(sql, *rest)

    with connection.execute_wrapper(watch):
        assert suspect_cells(now=clock.now(), policy=Policy()) == 0
    assert not Alert.objects.filter(kind="stop_unconfirmed").exists()


@pytest.mark.parametrize("cause", ["failures", "unfit"])
def test_quarantine_for_unexpected_attempts_survives_a_concurrent_clear(
    loop: Loop, cause: str
) -> None:
    cell = loop.cell()
    Cell.objects.update(state="QUARANTINED", quarantined_for=cause)
    Cell.objects.filter(quarantined_for="failures").update(quarantined_until=ago(1))

    def come() -> None:
        Cell.objects.update(quarantined_for="orphans")

    def watch(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if is_lock_of_cells(sql):
            assert meanwhile(come)
        return execute(sql, *rest)

    with connection.execute_wrapper(watch):
        if cause == "failures":
            assert clear_cells(now=clock.now(), policy=Policy()) == 0
        else:
            cell.beat()
    found = Cell.objects.get()
    assert (found.state, found.quarantined_for) == ("QUARANTINED", "orphans")


def test_successor_registering_during_a_goodbye_is_ready(loop: Loop) -> None:
    """The successor registers in another session, amid the goodbye if nothing holds it up."""
    cell = loop.cell()
    came = []

    def watch(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if sql.startswith('UPDATE "controlplane_cell"'):
            came.append(meanwhile(cell.register))
        return execute(sql, *rest)

    with connection.execute_wrapper(watch):
        cell.send(Goodbye(0).body())
    if came != [True]:
        cell.register()
    assert Cell.objects.get().state == "READY"
