"""Keys of cells are revoked and renewed: the old key is invalid at once, and nothing runs twice."""

import json
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError

from controlplane import clock
from controlplane.commands.attempts.launch_context import seal_launch_context
from controlplane.commands.cells.messages import (
    Beat,
    answer_heartbeats,
    record_goodbye,
    record_registration,
)
from controlplane.commands.cells.operate import (
    drain_cell,
    enroll_cell,
    revoke_cell,
    uncordon_cell,
)
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.state.apply import apply
from controlplane.config.stack import tables
from controlplane.contract.messages.reports import AttemptReport, Goodbye, Heartbeat, Register
from controlplane.contract.states import TaskState as S
from controlplane.contract.wire import keys
from controlplane.domain.cells.keys import CellAddress
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.state.effects import Effects, RaiseAlert
from controlplane.models import Alert, Attempt, AuditLine, Cell, CellLease, Job, Task
from controlplane.queries.integrity.invariants import check_all
from controlplane.queries.ticks import load_silence
from controlplane.queries.views.cells import get_cell
from tests.integration.loop.conftest import FakeCell, Loop

MARGIN = timedelta(seconds=10)


def revoke(name: str = "cell-1", reason: str = "") -> None:
    revoke_cell(name=name, actor="op", reason=reason, now=clock.now())


def renew(cell: FakeCell) -> None:
    """Renew the key and give it to the cell."""
    text = enroll_cell(name=cell.name, renew=True, actor="op", now=clock.now())
    cell.key = keys.decode_key(text)
    cell.loop.wire.sent.clear()  # sealed with the old key


def found() -> Cell:
    return Cell.objects.get(name="cell-1")


def placed(loop: Loop, **body: Any) -> tuple[FakeCell, Job, Attempt]:
    cell = loop.cell()
    job = loop.submit(**body)
    loop.place()
    (attempt,) = loop.attempts(job)
    return cell, job, attempt


def address_of(cell: FakeCell) -> CellAddress:
    return CellAddress(found().pk, cell.name, cell.incarnation, cell.key, salt=found().key_salt)


@pytest.mark.parametrize(
    "body",
    [
        Register({"cpu_millis": 4000, "memory_mib": 4096}, task_types=("container",)).body(),
        Heartbeat(()).body(),
        Goodbye(0).body(),
    ],
    ids=lambda body: body["type"],
)
def test_message_of_a_revoked_cell_changes_nothing_and_gets_no_answer(
    loop: Loop, body: dict[str, Any]
) -> None:
    cell = loop.cell()
    cell.beat()  # so that the inbox has cached the key
    revoke()
    lease, sent = CellLease.objects.values().get(), list(loop.wire.sent)
    for incarnation in ("one", "two"):
        cell.incarnation = incarnation
        cell.send(body)
    assert CellLease.objects.values().get() == lease
    assert (found().state, found().incarnation) == ("LOST", "one")
    assert [item for item in loop.wire.sent if item not in sent and "cell." in item[0]] == []


def test_report_of_a_revoked_cell_is_ignored(loop: Loop) -> None:
    cell, job, attempt = placed(loop)
    cell.beat(attempt)
    revoke()
    cell.end(attempt, S.SUCCEEDED, exit_code=0)
    assert loop.states(job) == ["ASSIGNED"]
    assert CellLease.objects.get().acked_seq < cell.seq


def test_message_verified_before_the_revocation_is_ignored_after_it(loop: Loop) -> None:
    """Another process of the inbox verified it with a cached key."""
    cell = loop.cell()
    address, lease = address_of(cell), CellLease.objects.values().get()
    revoke()
    now, seq = clock.now(), cell.seq + 9
    answer_heartbeats([Beat(address, seq, {})], now=now)
    record_goodbye(address, Goodbye(0), seq=seq, now=now)
    register = Register(cell.capacity)
    answer = record_registration(address, register, seq=seq, is_supported=True, now=now)
    assert answer is None
    assert CellLease.objects.values().get() == lease
    assert found().state == "LOST"


def test_task_of_a_revoked_cell_runs_elsewhere_at_once(loop: Loop) -> None:
    _, job, first = placed(loop)
    other = loop.cell("cell-2")
    revoke()
    loop.converge()
    first.refresh_from_db()
    assert (first.state, first.release_kind) == (S.WORKER_FAILED, "cell_lost")
    loop.place()
    assert [str(attempt.uid) for attempt in loop.attempts(job)[1:]] == other.run_orders()
    assert Task.objects.get().preemption_count == 1
    assert check_all() == []


def test_revoked_cell_gets_no_work(loop: Loop) -> None:
    loop.cell()
    revoke()
    job = loop.submit()
    loop.place()
    assert loop.states(job) == ["PENDING"]
    assert loop.attempts(job) == []


def test_orders_that_wait_in_the_queue_of_a_revoked_cell_are_deleted(loop: Loop) -> None:
    cell, _, _ = placed(loop)
    assert cell.run_orders()
    revoke()
    assert cell.orders() == []


def test_exclusive_task_of_a_revoked_cell_waits_for_the_end_of_its_lease(loop: Loop) -> None:
    _, job, attempt = placed(loop, exclusive=True)
    loop.cell("cell-2")
    expires_at = CellLease.objects.get(cell__name="cell-1").expires_at
    assert expires_at > clock.now() + MARGIN
    revoke()
    for _ in range(2):
        loop.converge()
        loop.place()
    attempt.refresh_from_db()
    assert (attempt.state, attempt.released_at) == (S.WORKER_FAILED, None)
    assert attempt.releasable_at == expires_at + MARGIN
    assert len(loop.attempts(job)) == 1
    Attempt.objects.update(releasable_at=clock.now())
    loop.converge()
    loop.place()
    assert len(loop.attempts(job)) == 2
    assert check_all() == []


def test_exclusive_task_waits_for_the_old_lease_after_the_key_is_renewed(loop: Loop) -> None:
    cell, job, attempt = placed(loop, exclusive=True)
    expires_at = CellLease.objects.get().expires_at
    revoke()
    renew(cell)
    cell.incarnation, cell.seq = "two", 0
    assert cell.register().verdict == "accepted"
    for _ in range(2):
        loop.converge()
        loop.place()
    attempt.refresh_from_db()
    assert attempt.releasable_at == expires_at + MARGIN
    assert len(loop.attempts(job)) == 1


def test_exclusive_task_waits_ten_seconds_if_the_lease_has_ended(loop: Loop) -> None:
    _, _, attempt = placed(loop, exclusive=True)
    CellLease.objects.update(expires_at=clock.now() - timedelta(seconds=60))
    before = clock.now()
    revoke()
    attempt.refresh_from_db()
    assert attempt.releasable_at is not None
    assert before + MARGIN <= attempt.releasable_at <= clock.now() + MARGIN


def test_strictly_exclusive_task_of_a_revoked_cell_waits_for_an_operator(loop: Loop) -> None:
    cell, job, attempt = placed(loop, exclusive="strict")
    loop.cell("cell-2")
    revoke()
    for _ in range(2):
        loop.converge()
        loop.place()
    attempt.refresh_from_db()
    assert (attempt.releasable_at, attempt.released_at) == (None, None)
    assert Alert.objects.filter(kind="exclusive_held", cleared_at=None).count() == 1
    assert len(loop.attempts(job)) == 1
    cancel_job(job_id=job.pk, reason="", force=True, actor="me", now=clock.now())
    assert cell.orders() == []


def test_revoked_cell_that_is_ordered_to_work_stays_revoked(loop: Loop) -> None:
    loop.cell()
    revoke()
    drain_cell(name="cell-1", actor="op", now=clock.now())
    uncordon_cell(name="cell-1", actor="op", now=clock.now())
    assert found().state == "LOST"
    with pytest.raises(IntegrityError, match="cell_revoked_is_lost"):
        Cell.objects.update(state="READY")


def test_launch_context_is_not_sealed_for_a_cell_revoked_meanwhile(loop: Loop) -> None:
    cell, _, attempt = placed(loop)
    assert seal_launch_context(cell="cell-1", key=cell.key, uid=attempt.uid, mac="0")
    revoke()
    with pytest.raises(NotFound, match="there is no cell cell-1"):
        seal_launch_context(cell="cell-1", key=cell.key, uid=attempt.uid, mac="0")


def test_revocation_closes_alerts_and_is_shown_and_audited(loop: Loop) -> None:
    loop.cell()
    kinds = ("cell_lost", "cell_twin", "registration_failed", "stop_unconfirmed", "cell_failing")
    apply(Effects(alerts=[RaiseAlert(kind, "cell-1", "x") for kind in kinds]), now=clock.now())
    revoke(reason="its disk was sold")
    revoke(reason="again")  # changes nothing
    assert not Alert.objects.filter(cleared_at=None).exists()
    document = get_cell("cell-1")
    assert document["revoked_at"] is not None
    assert (document["state"], document["silent"]) == ("LOST", False)
    assert document["state_reason"] == "revoked by op: its disk was sold"
    line = AuditLine.objects.get(action="revoke.cell_key")
    assert (line.actor, line.subject, line.text) == ("op", "cell cell-1", "its disk was sold")
    assert load_silence(lost=True)[0] == 0


def test_revoked_cell_keeps_its_key_only_if_renewed(loop: Loop) -> None:
    cell = loop.cell()
    revoke()
    with pytest.raises(Conflict, match=r"was revoked at .* new key"):
        enroll_cell(name="cell-1", now=clock.now())
    old = cell.key
    renew(cell)
    assert cell.key != old
    assert found().state_reason == "its key is renewed, and it has not registered since"
    assert (found().state, found().revoked_at) == ("LOST", None)
    assert cell.register().verdict == "draw_anew"  # its attempts run elsewhere
    cell.incarnation, cell.seq = "two", 0
    assert cell.register().verdict == "accepted"
    assert found().state == "READY"
    lines = AuditLine.objects.filter(subject="cell cell-1").order_by("pk")
    actions = [line.action for line in lines]
    assert actions == ["enroll.cell", "revoke.cell_key", "renew.cell_key"]


def test_renewed_key_replaces_the_old_one_at_once(loop: Loop) -> None:
    """A cell that restarts with its new key within its lease keeps its attempts."""
    cell, job, attempt = placed(loop)
    cell.report(AttemptReport(str(attempt.uid), 0, S.RUNNING, started_at=1.0))
    cell.beat(attempt)
    thief = FakeCell(loop, "cell-1", cell.capacity)
    thief.seq = cell.seq + 100
    lease = CellLease.objects.values().get()
    renew(cell)
    for body in (Heartbeat(()).body(), Register({}).body(), Goodbye(0).body()):
        thief.send(body)
    thief.end(attempt, S.SUCCEEDED)
    assert CellLease.objects.values().get() == lease
    assert loop.states(job) == ["RUNNING"]
    assert cell.register().verdict == "accepted"  # without another message before it
    assert not cell.beat(attempt).draw_anew
    cell.end(attempt, S.SUCCEEDED, exit_code=0)
    assert loop.states(job) == ["SUCCEEDED"]


def test_enrolment_without_renewal_prints_the_same_key(loop: Loop) -> None:
    cell = loop.cell()
    text = enroll_cell(name="cell-1", now=clock.now())
    assert keys.decode_key(text) == cell.key
    lines = AuditLine.objects.filter(subject="cell cell-1").order_by("pk")
    assert [line.action for line in lines] == ["enroll.cell", "show.cell_key"]


def test_commands_revoke_and_renew_with_the_user_in_the_audit_log(loop: Loop) -> None:
    output = StringIO()
    call_command("enroll_cell", "cell-1", stdout=output)
    call_command("revoke_cell", "cell-1", "--reason", "stolen", stdout=StringIO())
    with pytest.raises(CommandError, match="--renew"):
        call_command("enroll_cell", "cell-1", stdout=StringIO())
    renewed = StringIO()
    call_command("enroll_cell", "cell-1", "--renew", stdout=renewed)
    assert keys.decode_key(renewed.getvalue()) != keys.decode_key(output.getvalue())
    with pytest.raises(CommandError, match="there is no cell 'cell-2'"):
        call_command("revoke_cell", "cell-2")
    lines = AuditLine.objects.filter(via="command").order_by("pk")
    actions = [line.action for line in lines]
    assert actions == ["enroll.cell", "revoke.cell_key", "renew.cell_key"]
    for line in lines:
        assert line.actor.startswith("manage.py")


def test_stack_renews_the_revoked_keys_of_its_own_cells(
    loop: Loop, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without its database, which the stack stops with itself, no operator could renew them."""
    cells = [loop.cell(name) for name in ("cell-1", "cell-2")]
    revoke("cell-1")
    assert tables.main(["cell-1", "cell-2"]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    renewed, kept = (keys.decode_key(printed[cell.name]) for cell in cells)
    assert renewed != cells[0].key
    assert kept == cells[1].key
    assert Cell.objects.filter(revoked_at=None).count() == 2
