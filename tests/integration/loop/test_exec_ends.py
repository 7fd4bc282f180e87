"""Exec sessions that nothing else ends: convergence ends them; Sync repeats orders; the cache."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from controlplane import clock
from controlplane.commands.attempts.exec_sessions import ExecRequest, request_session
from controlplane.contract.messages.orders import Orders
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState as S
from controlplane.domain.cache.policy import CacheStatus
from controlplane.domain.cells.exec_sessions import ExecState
from controlplane.models import Attempt, CacheEntry, ExecSession, Job, Task
from tests.integration.loop.conftest import FakeCell, Loop

CACHED = {"cache": {"enabled": True, "key": "same"}}


def run(loop: Loop, cell: FakeCell, **body: Any) -> Attempt:
    """A running attempt."""
    job = loop.submit(**body)
    loop.converge()  # looks up the cache
    loop.place()
    [attempt] = loop.attempts(job)
    cell.report(AttemptReport(str(attempt.uid), 0, S.RUNNING))
    attempt.refresh_from_db()
    assert attempt.state == S.RUNNING
    return attempt


def request(attempt: Attempt) -> ExecSession:
    session = request_session(
        uid=attempt.uid,
        wanted=ExecRequest(("sh",), tty=True),
        actor="owner",
        token="t",
        now=clock.now(),
    )
    return ExecSession.objects.get(pk=session)


def orders_of(cell: FakeCell) -> list[str]:
    found = [order for order in cell.orders() if isinstance(order, Orders)]
    return [item.session for order in found for item in order.execs]


def test_order_is_sent_at_once_and_with_each_sync_until_the_claim(loop: Loop) -> None:
    cell = loop.cell()
    attempt = run(loop, cell)
    session = request(attempt)
    assert orders_of(cell) == [str(session.pk)]
    cell.beat(attempt)
    assert orders_of(cell) == [str(session.pk)] * 2
    now = clock.now()
    ExecSession.objects.update(
        state=ExecState.OPEN, opened_at=now, cell_seen_at=now, cell_nonce="n"
    )
    cell.beat(attempt)
    assert orders_of(cell) == [str(session.pk)] * 2


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"requested_at": 31}, "the cell did not answer"),
        ({"requested_at": 29}, None),
        ({"state": ExecState.OPEN, "client_seen_at": 31}, "the client was not connected for 30 s"),
        ({"state": ExecState.OPEN, "cell_seen_at": 31}, "the cell was not connected for 30 s"),
        ({"state": ExecState.OPEN, "requested_at": 9_000, "cell_seen_at": 29}, None),
    ],
)
def test_session_without_one_of_its_sides_ends_after_30_seconds(
    loop: Loop, facts: dict[str, Any], reason: str | None
) -> None:
    session = request(run(loop, loop.cell()))
    now = clock.now()
    instants = {"opened_at": 0, "client_seen_at": 0, "cell_seen_at": 0}
    ages = {**instants, **{name: age for name, age in facts.items() if name != "state"}}
    ExecSession.objects.update(
        state=facts.get("state", ExecState.REQUESTED),
        **{name: now - timedelta(seconds=age) for name, age in ages.items()},
    )
    counts = loop.converge()
    session.refresh_from_db()
    assert session.reason == (reason or "")
    assert (session.state == ExecState.ENDED) == (reason is not None)
    assert counts.get("exec_sessions_ended", 0) == (reason is not None)
    assert loop.converge().get("exec_sessions_ended", 0) == 0


def test_release_of_the_attempt_ends_its_sessions(loop: Loop) -> None:
    cell = loop.cell()
    attempt = run(loop, cell)
    session = request(attempt)
    cell.end(attempt, S.SUCCEEDED, exit_code=0)
    loop.converge()
    session.refresh_from_db()
    assert (session.state, session.reason) == (ExecState.ENDED, "the attempt was released")


def test_one_run_ends_a_bounded_number(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = run(loop, loop.cell())
    old = clock.now() - timedelta(seconds=60)
    for number in range(5):
        ExecSession.objects.create(
            uid=uuid4(),
            attempt=attempt,
            number=number,
            command=["sh"],
            actor="x",
            requested_at=old,
            client_seen_at=old,
        )
    monkeypatch.setattr("controlplane.commands.attempts.exec_sessions.MOST_ENDED", 3)
    assert loop.converge()["exec_sessions_ended"] == 3
    assert loop.converge()["exec_sessions_ended"] == 2


@pytest.mark.parametrize("is_entered", [False, True])
def test_result_of_an_entered_attempt_is_not_cached(loop: Loop, is_entered: bool) -> None:
    cell = loop.cell()
    attempt = run(loop, cell, **CACHED)
    request(attempt)
    if is_entered:
        now = clock.now()
        ExecSession.objects.update(state=ExecState.OPEN, opened_at=now, cell_seen_at=now)
    cell.end(attempt, S.SUCCEEDED, exit_code=0, result="42")
    loop.converge()
    assert CacheEntry.objects.exists() is not is_entered
    status = Task.objects.get(pk=attempt.task_id).cache_status
    assert status == (CacheStatus.SKIPPED if is_entered else CacheStatus.POPULATED)


def test_deletion_of_the_job_deletes_its_sessions(loop: Loop) -> None:
    cell = loop.cell()
    attempt = run(loop, cell)
    request(attempt)
    cell.end(attempt, S.SUCCEEDED, exit_code=0)
    loop.converge()
    Job.objects.update(deleted_at=clock.now())
    for _ in range(5):
        loop.converge()
    assert not Attempt.objects.exists()
    assert not ExecSession.objects.exists()
