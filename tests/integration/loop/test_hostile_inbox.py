"""The inbox under hostile messages: others keep their leases, operators and /readyz learn of it."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane import clock
from controlplane.api.operators import health
from controlplane.commands.cells import floods
from controlplane.contract.messages.reports import AttemptReport, Heartbeat, HeldAttempt, Register
from controlplane.contract.states import TaskState as S
from controlplane.contract.wire import envelope, keys
from controlplane.contract.wire.queues import inbox_queue
from controlplane.domain.cells.probes import Probe, probe_text
from controlplane.inbox import batches
from controlplane.inbox.batches import FORGET_SECONDS, Inbox
from controlplane.inbox.floods import WINDOW_SECONDS
from controlplane.models import Alert, Cell, CellLease, DeadLetter, InboxProbe
from controlplane.queries.cells.keys import write_probe
from tests.harness.hostile import BODIES, UID, wrong_values
from tests.integration.loop.conftest import FakeCell, Loop

NOON = datetime(2031, 5, 4, 12, tzinfo=UTC)

BEAT = Heartbeat(()).body()


class Seconds:
    """A timer that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def seal(cell: FakeCell, body: dict[str, Any]) -> str:
    cell.seq += 1
    return envelope.seal(
        keys.mac_key(cell.key, keys.TO_CONTROL),
        cell=cell.name,
        incarnation=cell.incarnation,
        seq=cell.seq,
        body=body,
    )


def heartbeat_seq(cell: FakeCell) -> int:
    return CellLease.objects.get(cell__name=cell.name).heartbeat_seq


def alerts(kind: str) -> list[str]:
    return list(Alert.objects.filter(kind=kind, cleared_at=None).values_list("text", flat=True))


@pytest.mark.parametrize("mac", ["\u00e9", "\u00e9" * 64, "\ud800", "0" * 64])
def test_message_with_a_bad_mac_is_dropped_alone(loop: Loop, mac: str) -> None:
    cell = loop.cell()
    bad = json.dumps({**json.loads(seal(cell, BEAT)), "mac": mac})
    good = seal(cell, BEAT)
    loop.inbox.apply([bad, good, bad])
    assert heartbeat_seq(cell) == cell.seq
    assert loop.inbox.dropped.total() == 2


def test_register_with_invalid_names_does_not_stop_the_batch(loop: Loop) -> None:
    odd, cell = loop.cell("odd"), loop.cell("good")
    body = {**Register({"cpu_millis": 1}).body(), "capacity": {"\x00\ud800": 1}, "pool": "\x00"}
    loop.inbox.apply([seal(odd, body), seal(cell, BEAT)])
    assert heartbeat_seq(cell) == cell.seq


@pytest.mark.parametrize("kind", ["reports", "heartbeat", "goodbye"])
def test_invalid_values_cost_no_batch_and_leave_no_dead_letters(loop: Loop, kind: str) -> None:
    """Whatever is read of it can be stored: a report that is put aside is lost to its task."""
    odd, cell = loop.cell("odd"), loop.cell("good")
    job = loop.submit()
    loop.place()
    [attempt] = loop.attempts(job)
    body = json.loads(json.dumps(BODIES[kind]).replace(UID, str(attempt.uid)))
    bodies = list(wrong_values(body))
    for start in range(0, len(bodies), 90):
        texts = [seal(odd, wrong) for wrong in bodies[start : start + 90]]
        loop.inbox.apply([*texts, seal(cell, BEAT)])
        assert heartbeat_seq(cell) == cell.seq
    assert not loop.inbox.dropped["unreadable"]
    assert not DeadLetter.objects.exists()


def test_invalid_register_values_cost_no_batch(loop: Loop) -> None:
    odd, cell = loop.cell("odd"), loop.cell("good")
    for wrong in wrong_values(BODIES["register"]):
        loop.inbox.apply([seal(odd, wrong), seal(cell, BEAT)])
        assert heartbeat_seq(cell) == cell.seq
    assert not loop.inbox.dropped["unreadable"]
    assert alerts("registration_failed") == []


def test_message_from_the_wrong_shard_is_dropped(loop: Loop) -> None:
    cell = loop.cell()
    own = inbox_queue(cell.name)
    other = "inbox.0" if own != "inbox.0" else "inbox.1"
    before = heartbeat_seq(cell)
    loop.inbox.apply([seal(cell, BEAT)], [other])
    assert heartbeat_seq(cell) == before
    assert loop.inbox.dropped == {"wrong_shard": 1}
    loop.inbox.apply([seal(cell, BEAT)], [own])
    assert heartbeat_seq(cell) == cell.seq


def flood(inbox: Inbox, timer: Seconds, cell: FakeCell, other: FakeCell, windows: int) -> None:
    register = Register(cell.capacity).body()
    for _ in range(windows):
        for _ in range(3):
            texts = [seal(cell, register) for _ in range(200)]
            inbox.apply([*texts, seal(other, BEAT)])
            assert heartbeat_seq(other) == other.seq
        timer.now += WINDOW_SECONDS + 0.1


def test_flooding_cell_is_quarantined_and_others_keep_their_leases(loop: Loop) -> None:
    timer = Seconds()
    cell, other = loop.cell("flooding"), loop.cell("other")
    inbox = Inbox(sync_seconds=0.0, timer=timer)
    flood(inbox, timer, cell, other, windows=3)
    assert Cell.objects.get(name="flooding").state == "READY"  # as with a backlog
    inbox.apply([seal(other, BEAT)])
    found = Cell.objects.get(name="flooding")
    assert (found.state, found.quarantined_for) == ("QUARANTINED", "flooding")
    assert "floods" in found.state_reason
    assert alerts("cell_flooding") == [f"cell flooding: {found.state_reason}"]
    assert Cell.objects.get(name="other").state == "READY"
    flood(inbox, timer, cell, other, windows=1)
    inbox.apply([])
    assert found.quarantined_until is not None
    # It stopped: once its time is over it is as it was ordered to be.
    Cell.objects.filter(name="flooding").update(quarantined_until=clock.now())
    loop.converge()
    assert Cell.objects.get(name="flooding").state == "READY"


def test_cell_flooding_with_few_long_messages_is_quarantined(loop: Loop) -> None:
    timer = Seconds()
    cell, other = loop.cell("flooding"), loop.cell("other")
    inbox = Inbox(sync_seconds=0.0, timer=timer)
    long = {**BEAT, "other": "x" * 1_000_000}
    for _ in range(4):
        for _ in range(12):
            inbox.apply([*(seal(cell, long) for _ in range(3)), seal(other, BEAT)])
        timer.now += WINDOW_SECONDS + 0.1
    found = Cell.objects.get(name="flooding")
    assert (found.state, found.quarantined_for) == ("QUARANTINED", "flooding")
    assert Cell.objects.get(name="other").state == "READY"


@pytest.mark.parametrize("state", [S.BUILDING, S.RUNNING])
def test_finish_time_of_an_open_attempt_leaves_no_dead_letter(loop: Loop, state: S) -> None:
    cell = loop.cell()
    job = loop.submit()
    loop.place()
    (attempt,) = loop.attempts(job)
    opened = AttemptReport(str(attempt.uid), 0, state)
    cell.report(opened)
    cell.report(replace(opened, finished_at=clock.now().timestamp()))
    assert not DeadLetter.objects.exists()
    (attempt,) = loop.attempts(job)
    assert (attempt.state, attempt.finished_at) == (state, None)


def test_a_flood_with_forged_macs_quarantines_no_cell(loop: Loop) -> None:
    timer = Seconds()
    cell = loop.cell()
    inbox = Inbox(sync_seconds=0.0, timer=timer)
    forged = json.dumps({**json.loads(seal(cell, BEAT)), "mac": "0" * 64})
    for _ in range(5):
        inbox.apply([*[forged] * 1000, seal(cell, BEAT)])
        timer.now += WINDOW_SECONDS + 0.1
    inbox.apply([seal(cell, BEAT)])
    assert Cell.objects.get(name=cell.name).state == "READY"
    assert heartbeat_seq(cell) == cell.seq
    assert inbox.dropped == {"bad_mac": 5000}


def statements(inbox: Inbox, *texts: str) -> list[str]:
    """Return the statements of a batch."""
    with CaptureQueriesContext(connection) as queries:
        inbox.apply(texts)
    return [query["sql"] for query in queries]


def test_flood_with_forged_macs_does_not_reread_keys_for_five_seconds(loop: Loop) -> None:
    """Once, because a cell may have been enrolled again with another key."""
    timer = Seconds()
    cell = loop.cell()
    inbox = Inbox(sync_seconds=1000.0, timer=timer)
    forged = json.dumps({**json.loads(seal(cell, BEAT)), "mac": "0" * 64})

    def reads() -> int:
        return len([text for text in statements(inbox, forged) if "salt" in text])

    assert [reads() for _ in range(5)] == [1, 1, 0, 0, 0]
    timer.now += FORGET_SECONDS
    assert [reads() for _ in range(4)] == [0, 1, 0, 0]


def test_waiting_heartbeats_are_applied_before_the_rest_of_a_batch(loop: Loop) -> None:
    """Registrations and reports take their time, and leases depend on heartbeats."""
    timer = Seconds()
    waiting, other = loop.cell("waiting"), loop.cell("other")
    inbox = Inbox(sync_seconds=5.0, timer=timer)
    inbox.apply([seal(waiting, BEAT)])
    timer.now += 1.0
    inbox.apply([seal(waiting, BEAT)])
    assert heartbeat_seq(waiting) < waiting.seq
    timer.now += 15.0
    queries = statements(inbox, seal(other, Register(other.capacity).body()))
    assert heartbeat_seq(waiting) == waiting.seq
    [renewed] = [
        n for n, text in enumerate(queries) if "UPDATE controlplane_celllease l SET" in text
    ]
    [opened] = [n for n, text in enumerate(queries) if "INSERT INTO controlplane_celllease" in text]
    assert renewed < opened


@pytest.mark.parametrize(
    ("sync", "heartbeat", "convergence", "waits"),
    [(1, 5, 5, 3), (1, 1, 5, 1), (1, 5, 1, 1), (1, 5, 2, 2), (0.5, 5, 5, 1.5), (2, 1, 1, 2)],
)
def test_groups_of_idle_cells_delay_neither_leases_nor_probes(
    loop: Loop, settings: Any, sync: float, heartbeat: float, convergence: float, waits: float
) -> None:
    """Convergence holds rules back after three of its intervals without a returned probe."""
    intervals = {"heartbeat_seconds": heartbeat, "convergence_interval_seconds": convergence}
    settings.CELLRUN = settings.CELLRUN.model_copy(update={"sync_seconds": sync, **intervals})
    timer, idle = Seconds(), loop.cell("idle")
    inbox = Inbox.with_settings(timer)
    inbox.apply([seal(idle, BEAT)])
    inbox.apply([seal(idle, BEAT)])
    timer.now += waits - 0.1
    inbox.apply([])
    assert heartbeat_seq(idle) < idle.seq
    timer.now += 0.2
    inbox.apply([])
    assert heartbeat_seq(idle) == idle.seq


def test_idle_cells_are_answered_in_larger_groups(loop: Loop) -> None:
    timer, idle, busy = Seconds(), loop.cell("idle"), loop.cell("busy")
    held = (HeldAttempt(UID, S.RUNNING),)
    inbox = Inbox(sync_seconds=1.0, idle_seconds=3.0, timer=timer)
    inbox.apply([seal(idle, BEAT)])
    inbox.apply([seal(idle, BEAT)])
    timer.now += 2.9
    inbox.apply([])
    assert heartbeat_seq(idle) < idle.seq
    timer.now += 0.1
    inbox.apply([])
    assert heartbeat_seq(idle) == idle.seq
    timer.now += 1.0
    inbox.apply([seal(idle, BEAT)])
    assert heartbeat_seq(idle) < idle.seq
    inbox.apply([seal(busy, Heartbeat(held).body())])
    assert heartbeat_seq(idle) == idle.seq, "one cell with work ends the wait of all"
    assert heartbeat_seq(busy) == busy.seq


def test_probe_counts_as_returned_only_after_the_heartbeats_before_it(loop: Loop) -> None:
    """Convergence takes a returned probe as proof that every earlier heartbeat was applied."""
    timer, cell = Seconds(), loop.cell()
    sent_at = clock.now() - timedelta(seconds=5)
    InboxProbe.objects.create(shard=0, sent_at=sent_at)
    inbox = Inbox(sync_seconds=5.0, timer=timer)
    inbox.apply([seal(cell, BEAT)])
    inbox.apply([seal(cell, BEAT)])
    inbox.apply([write_probe(0, sent_at=clock.now())])
    assert heartbeat_seq(cell) < cell.seq
    assert InboxProbe.objects.get().delivered_until is None
    timer.now += 15.0
    inbox.apply([])
    assert heartbeat_seq(cell) == cell.seq
    assert InboxProbe.objects.get().delivered_until is not None


def test_probe_is_lost_with_the_heartbeats_before_it(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer, cell = Seconds(), loop.cell()
    InboxProbe.objects.create(shard=0, sent_at=clock.now())
    inbox = Inbox(sync_seconds=5.0, timer=timer)
    inbox.apply([seal(cell, BEAT)])
    inbox.apply([seal(cell, BEAT), write_probe(0, sent_at=clock.now())])
    timer.now += 15.0
    with monkeypatch.context() as patch:
        patch.setattr(batches, "answer_heartbeats", refuse)
        with pytest.raises(OperationalError):
            inbox.apply([])
    inbox.apply([])
    assert heartbeat_seq(cell) < cell.seq
    assert InboxProbe.objects.get().delivered_until is None
    inbox.apply([write_probe(0, sent_at=clock.now())])
    assert InboxProbe.objects.get().delivered_until is not None


@pytest.mark.parametrize(
    "forged",
    [
        json.dumps({"probe": 0, "at": "x", "mac": "\ud800" * 8}),
        json.dumps({"probe": 0, "at": "x", "mac": None}),
        json.dumps({"probe": 0, "at": NOON.isoformat(), "mac": "0" * 64}),
        probe_text("the secret key of another installation", Probe(0, NOON)),
        write_probe(1, sent_at=NOON).replace('"probe": 1', '"probe": 0'),
        write_probe(0, sent_at=NOON).replace("T12:00", "T13:00"),
    ],
)
def test_probe_of_a_cell_proves_nothing(loop: Loop, forged: str) -> None:
    """With it, heartbeats that wait behind the flood of a cell would look as if never sent."""
    InboxProbe.objects.create(shard=0, sent_at=clock.now())
    loop.inbox.apply([forged], ["inbox.0"])
    assert loop.inbox.dropped == {"bad_mac": 1}
    assert InboxProbe.objects.get().delivered_until is None
    loop.inbox.apply([write_probe(0, sent_at=clock.now())], ["inbox.0"])
    assert InboxProbe.objects.get().delivered_until is not None


def test_probe_of_a_former_secret_key_counts(loop: Loop, settings: Any) -> None:
    """It was sent before the rotation, or by a process that has not restarted yet."""
    InboxProbe.objects.create(shard=0, sent_at=clock.now())
    sent = write_probe(0, sent_at=clock.now())
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another secret key of this installation"
    loop.inbox.apply([sent], ["inbox.0"])
    assert InboxProbe.objects.get().delivered_until is not None


def refuse(*_: object, **__: object) -> None:
    raise OperationalError("the database is away")


@pytest.fixture(autouse=True)
def probe_of_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "PROBE_SECONDS", 0.0)


def readiness() -> dict[str, str]:
    checks: dict[str, str] = Client().get("/readyz").json()["checks"]
    return checks


def test_lost_batch_raises_an_alert_and_recurring_losses_fail_readyz(
    loop: Loop,
) -> None:
    loop.converge()
    assert readiness()["inbox"] == "ok"
    loop.inbox.note_lost(500, TypeError("strings with non-ASCII characters"))
    loop.inbox.note_lost(2, TypeError("\x00"))
    loop.inbox.apply([])
    (text,) = alerts(batches.BATCH_LOST)
    assert text.startswith("2 batches with 502 messages of cells lost; last error: TypeError")
    # One loss, as when the database restarts, is repaired by the cells: they send again.
    assert readiness()["inbox"] == "ok"
    Alert.objects.update(
        raised_at=clock.now() - timedelta(seconds=300),
        last_raised_at=clock.now() - timedelta(seconds=61),
    )
    loop.inbox.note_lost(3, TypeError("again"))
    loop.inbox.apply([])
    (text,) = alerts(batches.BATCH_LOST)
    assert text.startswith("1 batch with 3 messages of cells lost; last error: TypeError")
    assert readiness()["inbox"] == text
    later = clock.now() - timedelta(seconds=121)
    Alert.objects.update(last_raised_at=later)
    assert readiness()["inbox"] == "ok"


def test_all_cells_silent_raises_an_alert_and_fails_readyz(loop: Loop) -> None:
    loop.converge()
    assert readiness()["cells"] == "ok"  # there is none yet
    first, second = loop.cell("first"), loop.cell("second")
    CellLease.objects.filter(cell__name="first").update(
        last_message_at=clock.now() - timedelta(seconds=61)
    )
    loop.converge()
    assert (readiness()["cells"], alerts("cells_silent")) == ("ok", [])
    CellLease.objects.update(last_message_at=clock.now() - timedelta(seconds=61))
    loop.converge()
    assert readiness()["cells"].startswith("none of 2 cells sent a message for 6")
    (text,) = alerts("cells_silent")
    assert text.startswith("no message of any of 2 cells came since ")
    second.beat()
    loop.converge()
    assert (readiness()["cells"], alerts("cells_silent")) == ("ok", [])
    assert first.name == "first"
    CellLease.objects.update(
        last_message_at=clock.now() - timedelta(seconds=90), left_at=clock.now()
    )
    assert readiness()["cells"] == "ok"  # all have left, as ordered


def test_cell_with_closed_logins_is_quarantined_until_they_open(loop: Loop) -> None:
    """A cell without logins would start nothing; other cells take work."""
    loop.cell("closed")
    loop.cell("other")
    now = clock.now()
    floods.quarantine_closed("closed", "it floods inbox.3", seconds=240, now=now)
    found = Cell.objects.get(name="closed")
    assert (found.state, found.quarantined_for) == ("QUARANTINED", "flooding")
    assert found.quarantined_until == now + timedelta(seconds=240)
    text = "it floods inbox.3; its logins at Redis are closed for 240 s"
    assert alerts("cell_flooding") == [f"cell closed: {text}"]
    assert Cell.objects.get(name="other").state == "READY"


def test_closed_logins_of_an_unknown_cell_raise_no_alert(loop: Loop) -> None:
    floods.quarantine_closed("unknown", "it floods inbox.3", seconds=60, now=clock.now())
    assert alerts("cell_flooding") == []


def test_dropped_messages_of_a_shard_raise_an_alert(loop: Loop) -> None:
    floods.alert_dropped("inbox.3", messages=7, size_bytes=80 << 20, now=clock.now())
    [text] = alerts("inbox_dropped")
    assert "7 messages (80 MiB) of inbox.3" in text
