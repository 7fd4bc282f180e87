"""A rotation: two keys of a cell are valid until the next one is used, discarded or revoked."""

from copy import copy
from datetime import datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError

from controlplane import clock
from controlplane.commands.cells.operate import enroll_cell, revoke_cell
from controlplane.commands.cells.rotation import end_overdue_rotations, rotate_key
from controlplane.contract.messages.reports import (
    AttemptReport,
    Goodbye,
    Heartbeat,
    Register,
    Reports,
)
from controlplane.contract.states import TaskState as S
from controlplane.contract.wire import envelope, keys
from controlplane.domain.errors import Conflict, NotFound
from controlplane.inbox.batches import Inbox
from controlplane.models import Alert, Attempt, AuditLine, Cell, CellLease, Job
from tests.integration.api.conftest import change_setting
from tests.integration.loop.conftest import FakeCell, Loop

DAY = timedelta(days=1)
BODIES = {
    "register": Register({"cpu_millis": 4000, "memory_mib": 4096}, task_types=("container",)),
    "heartbeat": Heartbeat(()),
    "reports": Reports(0, ()),
    "goodbye": Goodbye(60),
}


def rotate(cell: FakeCell, until: datetime | None = None) -> FakeCell:
    """Begin a rotation; return the same cell with its next key, for messages after those of now."""
    now = clock.now()
    text, _ = rotate_key(name=cell.name, until=until or now + DAY, actor="op", now=now)
    following = copy(cell)
    following.key = keys.decode_key(text)
    following.seq += 50
    return following


def written(cell: FakeCell, body: Any) -> str:
    """Return the next message of a cell, without sending it."""
    cell.seq += 1
    return envelope.seal(
        keys.mac_key(cell.key, keys.TO_CONTROL),
        cell=cell.name,
        incarnation=cell.incarnation,
        seq=cell.seq,
        body=body.body(),
    )


def placed(loop: Loop) -> tuple[FakeCell, Job, Attempt]:
    cell = loop.cell()
    job = loop.submit()
    loop.place()
    (attempt,) = loop.attempts(job)
    return cell, job, attempt


def sent_to(cell: FakeCell) -> list[tuple[str, str]]:
    return [item for item in cell.loop.wire.sent if item[0].startswith(f"cell.{cell.name}.")]


def is_in_rotation() -> bool:
    return Cell.objects.get().next_key_until is not None


def actions() -> list[str]:
    return list(AuditLine.objects.order_by("pk").values_list("action", flat=True))


def assert_ignored(cell: FakeCell, attempt: Attempt | None = None) -> None:
    """Assert that no message of the cell changes anything or gets an answer."""
    cell = copy(cell)
    cell.seq += 1000
    lease, sent, states = (
        CellLease.objects.values().get(),
        sent_to(cell),
        list(Attempt.objects.values_list("state")),
    )
    for body in BODIES.values():
        cell.send(body.body())
    if attempt is not None:
        cell.end(attempt, S.SUCCEEDED, exit_code=0)
    assert CellLease.objects.values().get() == lease
    assert sent_to(cell) == sent
    assert list(Attempt.objects.values_list("state")) == states


def test_present_key_works_until_the_next_one_is_used(loop: Loop) -> None:
    cell = loop.cell()
    rotate(cell)
    assert not cell.beat().draw_anew
    job = loop.submit()
    loop.place()
    (attempt,) = loop.attempts(job)
    assert cell.run_orders() == [str(attempt.uid)]  # sealed with the present key
    assert cell.register().verdict == "accepted"
    cell.end(attempt, S.SUCCEEDED, exit_code=0)
    assert loop.states(job) == ["SUCCEEDED"]
    assert is_in_rotation()


@pytest.mark.parametrize("kind", BODIES)
def test_first_message_under_the_next_key_ends_the_present_one(loop: Loop, kind: str) -> None:
    cell, job, attempt = placed(loop)
    cell.beat(attempt)  # so that the inbox has cached the present key
    following = rotate(cell)
    loop.inbox.apply([written(cell, Reports(0, ()))])  # and now both
    following.send(BODIES[kind].body())
    assert not is_in_rotation()
    assert_ignored(cell, attempt)
    loop.wire.sent.clear()
    assert not following.beat(attempt).draw_anew
    following.end(attempt, S.SUCCEEDED, exit_code=0)
    assert loop.states(job) == ["SUCCEEDED"]
    assert len(loop.attempts(job)) == 1
    assert actions()[-2:] == ["rotate.cell_key", "replace.cell_key"]


def test_orders_are_sealed_with_the_key_that_the_cell_used_last(loop: Loop) -> None:
    cell = loop.cell()
    following = rotate(cell)
    loop.wire.sent.clear()
    assert following.register().verdict == "accepted"  # the answer opens with the next key
    job = loop.submit()
    loop.place()
    assert following.run_orders() == [str(attempt.uid) for attempt in loop.attempts(job)]


def test_order_that_the_cell_could_not_open_is_sent_again(loop: Loop) -> None:
    """The cell restarted with its next key while the order waited in its queue."""
    cell, _, attempt = placed(loop)
    following = rotate(cell)
    loop.wire.sent.clear()
    following.register()
    Attempt.objects.update(created_at=clock.now() - timedelta(seconds=5))
    assert [run.uid for run in following.beat().orders.runs] == [str(attempt.uid)]


def test_late_message_of_the_present_key_in_the_batch_of_the_switch_is_dropped(loop: Loop) -> None:
    cell, _, attempt = placed(loop)
    following = rotate(cell)
    early = written(cell, Reports(cell.last_report, (running(cell, attempt),)))
    switch = written(following, Heartbeat(()))
    late = written(cell, Goodbye(0))
    loop.inbox.apply([early, switch, late])
    attempt.refresh_from_db()
    assert attempt.state == S.RUNNING
    assert CellLease.objects.get().left_at is None
    assert loop.inbox.dropped == {"bad_mac": 1}


def running(cell: FakeCell, attempt: Attempt) -> AttemptReport:
    return AttemptReport(str(attempt.uid), cell.seq + 1, S.RUNNING, started_at=1.0)


def test_other_process_of_the_inbox_that_cached_the_old_key_ignores_it(loop: Loop) -> None:
    cell, _, attempt = placed(loop)
    following = rotate(cell)
    other = Inbox(sync_seconds=0.0)
    other.apply([written(cell, Reports(0, ()))])
    following.send(BODIES["register"].body())
    lease, sent = CellLease.objects.values().get(), sent_to(cell)
    cell.seq += 1000
    other.apply([written(cell, Heartbeat(()))])
    assert CellLease.objects.values().get() == lease
    assert sent_to(cell) == sent
    attempt.refresh_from_db()
    assert attempt.released_at is None


def test_forged_messages_do_not_end_the_present_key(loop: Loop) -> None:
    cell = loop.cell()
    other = loop.cell("cell-2")
    following = rotate(cell)
    forger = copy(cell)
    forger.key = b"f" * 32
    tampered = written(following, Heartbeat(())).replace('"seq":', '"seq":9')
    foreign = copy(following)
    foreign.name = other.name  # signed with the next key of another cell
    texts = [written(forger, Heartbeat(())), tampered, written(foreign, Heartbeat(()))]
    loop.inbox.apply(texts)
    assert loop.inbox.dropped == {"bad_mac": 3}
    assert Cell.objects.get(name="cell-1").next_key_until is not None
    assert not cell.beat().draw_anew


def test_next_key_is_discarded_at_its_deadline_and_the_present_one_stays(loop: Loop) -> None:
    cell, job, attempt = placed(loop)
    following = rotate(cell)
    loop.converge()
    assert is_in_rotation()
    Cell.objects.update(next_key_until=clock.now())
    assert loop.converge()["rotations_ended"] == 1
    assert not is_in_rotation()
    assert_ignored(following, attempt)
    assert not cell.beat(attempt).draw_anew
    cell.end(attempt, S.SUCCEEDED, exit_code=0)
    assert loop.states(job) == ["SUCCEEDED"]
    line = AuditLine.objects.get(action="discard.cell_key")
    assert (line.actor, line.subject) == ("convergence", "cell cell-1")
    assert rotate(cell).key not in (cell.key, following.key)


def test_renewal_ends_both_keys(loop: Loop) -> None:
    cell = loop.cell()
    following = rotate(cell)
    renewed = keys.decode_key(enroll_cell(name=cell.name, renew=True, actor="op", now=clock.now()))
    assert renewed not in (cell.key, following.key)
    assert not is_in_rotation()
    assert_ignored(cell)
    assert_ignored(following)


def test_revocation_ends_both_keys(loop: Loop) -> None:
    cell = loop.cell()
    following = rotate(cell)
    revoke_cell(name=cell.name, actor="op", now=clock.now())
    assert not is_in_rotation()
    assert_ignored(cell)
    assert_ignored(following)
    with pytest.raises(Conflict, match="--renew"):
        rotate(cell)
    with pytest.raises(IntegrityError, match="cell_next_key_ends"):
        Cell.objects.update(next_key_salt="00", next_key_until=clock.now())


def test_repeated_rotation_returns_the_same_key_and_deadline(loop: Loop) -> None:
    cell = loop.cell()
    until = clock.now() + DAY
    first = rotate(cell, until)
    assert rotate(cell, until + DAY).key == first.key
    assert Cell.objects.get().next_key_until == until
    assert actions()[-2:] == ["rotate.cell_key", "show.cell_key"]
    # Without --rotate the command prints the present key.
    assert keys.decode_key(enroll_cell(name=cell.name, now=clock.now())) == cell.key


def test_a_cell_that_is_not_enrolled_has_no_rotation(loop: Loop) -> None:
    with pytest.raises(NotFound, match="there is no cell 'cell-9'"):
        rotate_key(name="cell-9", until=clock.now(), actor="op", now=clock.now())
    assert not Cell.objects.exists()


@pytest.mark.parametrize("kind", ["reports", "heartbeat"])
def test_both_keys_stay_valid_while_redis_cannot_end_a_login(
    loop: Loop, settings: Any, kind: str
) -> None:
    """Otherwise the password of the old key would remain at Redis unnoticed."""
    cell = loop.cell()
    following = rotate(cell)
    change_setting(settings, redis_users=True)
    address, settings.CELERY_BROKER_URL = settings.CELERY_BROKER_URL, "redis://127.0.0.1:1/0"
    loop.wire.sent.clear()
    assert following.register().verdict == "accepted"
    assert is_in_rotation()
    alert = Alert.objects.get(cleared_at=None)
    assert (alert.kind, alert.subject) == ("rotation_failed", "cell-1")
    change_setting(settings, redis_users=False)
    settings.CELERY_BROKER_URL = address
    following.send(BODIES[kind].body())
    assert not is_in_rotation()
    assert_ignored(cell)


def test_next_key_in_use_is_not_discarded_when_redis_works_again(loop: Loop, settings: Any) -> None:
    cell = loop.cell()
    following = rotate(cell, until=clock.now() + timedelta(seconds=1))
    change_setting(settings, redis_users=True)
    address, settings.CELERY_BROKER_URL = settings.CELERY_BROKER_URL, "redis://127.0.0.1:1/0"
    loop.wire.sent.clear()
    following.register()
    change_setting(settings, redis_users=False)
    settings.CELERY_BROKER_URL = address
    assert end_overdue_rotations(now=clock.now() + timedelta(hours=1)) == 0
    assert not following.beat().draw_anew
    assert not is_in_rotation()
    assert_ignored(cell)


def test_command_prints_the_next_key_alone_and_its_deadline_beside_it(loop: Loop) -> None:
    cell = loop.cell()
    output, notes = StringIO(), StringIO()
    before = clock.now()
    call_command("enroll_cell", "cell-1", "--rotate", stdout=output, stderr=notes)
    assert keys.decode_key(output.getvalue()) != cell.key
    until = Cell.objects.get().next_key_until
    assert until is not None
    assert before + DAY <= until <= clock.now() + DAY
    assert f"before {until:%Y-%m-%d %H:%M:%S} UTC, this one is discarded" in notes.getvalue()
    line = AuditLine.objects.get(action="rotate.cell_key")
    assert line.actor.startswith("manage.py")
    assert line.text == f"the next key, until {until:%Y-%m-%d %H:%M:%S} UTC"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--pool", "gpu"], "omit the options of the enrolment"),
        (["--within-hours", "0"], "--within-hours: 1 to 720 hours are possible"),
        (["--within-hours", "721"], "--within-hours: 1 to 720 hours are possible"),
        (["--renew"], "not allowed with argument"),
    ],
)
def test_command_refuses_options_that_do_not_fit(loop: Loop, options: list[str], text: str) -> None:
    loop.cell()
    with pytest.raises(CommandError, match=text):
        call_command("enroll_cell", "cell-1", "--rotate", *options, stdout=StringIO())
    assert not is_in_rotation()


def test_command_refuses_a_deadline_without_a_rotation(loop: Loop) -> None:
    with pytest.raises(CommandError, match="--within-hours needs --rotate"):
        call_command("enroll_cell", "cell-1", "--within-hours", "5", stdout=StringIO())
    assert not Cell.objects.exists()
