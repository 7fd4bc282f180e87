"""Alerts close once their cause is over, also those that no other rule would check again."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from threading import Thread
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F

from controlplane import clock
from controlplane.commands.convergence.housekeeping import close_quiet_alerts
from controlplane.commands.convergence.runner import Memory, RuleContext
from controlplane.commands.state.apply import apply
from controlplane.commands.state.findings import close_alert
from controlplane.commands.state.tick_alerts import TickAlerts
from controlplane.commands.state.tick_runs import claim_turn, note_hold, note_run
from controlplane.contract.states import TaskState as S
from controlplane.domain.alerts import QUIET_SECONDS
from controlplane.domain.convergence.policy import Policy
from controlplane.domain.errors import NotFound
from controlplane.domain.state.effects import Effects, RaiseAlert
from controlplane.models import Alert, AuditLine, InboxProbe, Job, TickState
from controlplane.queries.sql import rows
from controlplane.queries.ticks import TickFacts, load_tick
from controlplane.ticks import convergence
from tests.e2e.stack import wait_until
from tests.integration.loop.conftest import FakeCell, Loop
from tests.integration.loop.everything import ago


def age(seconds: float) -> None:
    """As if so much time had passed since the alerts were last raised."""
    Alert.objects.update(
        raised_at=F("raised_at") - timedelta(seconds=seconds),
        last_raised_at=F("last_raised_at") - timedelta(seconds=seconds),
    )


def raise_alert(kind: str, text: str = "because") -> Alert:
    apply(Effects(alerts=[RaiseAlert(kind, "it", text)]), now=clock.now())
    return Alert.objects.get(kind=kind, cleared_at=None)


@pytest.mark.parametrize("kind", sorted(QUIET_SECONDS))
def test_alert_that_is_not_raised_again_is_closed_after_its_quiet_time(
    loop: Loop, kind: str
) -> None:
    loop.converge()
    alert = raise_alert(kind)
    age(QUIET_SECONDS[kind] - 60)
    loop.converge()
    alert.refresh_from_db()
    assert alert.cleared_at is None
    age(61)
    assert loop.converge()["alerts_closed"] == 1
    alert.refresh_from_db()
    assert alert.cleared_at is not None


def test_alert_raised_again_stays_open_with_the_latest_text(loop: Loop) -> None:
    alert = raise_alert("plugin_failed", "first")
    first = alert.raised_at
    assert raise_alert("plugin_failed", "within the same minute").text == "first"
    age(599)
    again = raise_alert("plugin_failed", "second")
    loop.converge()
    again.refresh_from_db()
    assert (again.pk, again.text, again.cleared_at) == (alert.pk, "second", None)
    assert again.raised_at < first < again.last_raised_at


@pytest.mark.parametrize("seconds", [-3_600, 100])
def test_tick_without_a_recent_finish_is_late(loop: Loop, seconds: float) -> None:
    """Also if the clock was put back since."""
    at = clock.now() - timedelta(seconds=seconds)
    TickState.objects.create(name="placement", finished_at=at)
    loop.converge()
    assert Alert.objects.filter(kind="tick_late", subject="placement").exists()


@pytest.mark.parametrize("name", ["placement", "callbacks"])
def test_tick_that_never_finished_is_late_after_a_minute(loop: Loop, name: str) -> None:
    alerts, now = TickAlerts(), clock.now()
    for seconds in (0, 60):
        alerts.watch_tick(name, TickFacts(), now=now + timedelta(seconds=seconds))
        assert not Alert.objects.exists()
    alerts.watch_tick(name, TickFacts(mark=1), now=now + timedelta(seconds=61))
    assert "never" in Alert.objects.get(kind="tick_late", subject=name).text
    later = now + timedelta(seconds=62)
    alerts.watch_tick(name, TickFacts(finished_at=later), now=later)
    assert not Alert.objects.filter(cleared_at=None).exists()


class Died(Exception):
    """The process did."""


@pytest.mark.parametrize("where", ["the alert", "the run"])
def test_gap_hold_survives_the_death_of_the_tick_that_found_it(loop: Loop, where: str) -> None:
    loop.converge()
    InboxProbe.objects.filter(shard=0).update(delivered_until=ago(16))
    TickState.objects.update(started_at=ago(5))

    def die(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if ("tickrun" if where == "the run" else "controlplane_alert") in sql:
            raise Died
        return execute(sql, *rest)

    with connection.execute_wrapper(die), suppress(Died):
        convergence.run()
    memory = Memory()
    hold_until = load_tick("convergence").hold_until
    assert hold_until is not None
    assert hold_until > clock.now()
    has_alert = Alert.objects.filter(kind="control_plane_gap", cleared_at=None).exists
    assert has_alert() == (where == "the run")
    InboxProbe.objects.update(delivered_until=clock.now())
    TickState.objects.update(started_at=ago(5))
    convergence.run(memory=memory)
    assert load_tick("convergence").hold_until == hold_until
    TickState.objects.update(started_at=ago(5), hold_until=ago(1))
    convergence.run(memory=memory)
    assert load_tick("convergence").hold_until is None
    assert not has_alert()


@pytest.mark.parametrize(
    ("sent", "delivered", "is_gap"),
    [(16, 16, False), (29, 29, False), (31, 31, True), (5, 16, True)],
)
def test_late_tick_is_no_gap_if_the_inbox_delivered_all_probes_within_a_lease(
    loop: Loop, sent: float, delivered: float, is_gap: bool
) -> None:
    """Requests to a store that does not respond delay ticks, for example."""
    loop.converge()
    InboxProbe.objects.update(sent_at=ago(sent), delivered_until=ago(delivered))
    if sent == delivered:
        InboxProbe.objects.update(delivered_until=F("sent_at"))
    TickState.objects.update(started_at=ago(sent), finished_at=ago(5))
    convergence.run(memory=loop.memory)
    assert (load_tick("convergence").hold_until is not None) == is_gap


def test_gap_alert_of_another_process_is_closed(loop: Loop) -> None:
    loop.converge()
    TickAlerts().raise_gap("convergence", None, now=clock.now())
    assert Alert.objects.get().text.endswith(" until cells had time to send messages")
    loop.memory = Memory()
    loop.converge()
    assert not Alert.objects.filter(kind="control_plane_gap", cleared_at=None).exists()


def test_slow_tick_does_not_overwrite_the_hold_of_a_later_tick(loop: Loop) -> None:
    now = clock.now()
    slow, later = now - timedelta(seconds=20), now - timedelta(seconds=3)
    hold_until = now + timedelta(seconds=27)
    for at in (slow, later):
        assert claim_turn("convergence", now=at, interval=5)
    rest: dict[str, Any] = {"finished_at": now, "counts": {}, "is_claimed": True}
    note_run("convergence", started_at=later, hold_until=hold_until, **rest)
    note_hold("convergence", started_at=slow, hold_until=now)
    note_run("convergence", started_at=slow, **rest)
    tick = load_tick("convergence")
    assert (tick.started_at, tick.hold_until) == (later, hold_until)
    assert claim_turn("convergence", now=now, interval=5)
    note_run("convergence", started_at=now, **rest)
    assert load_tick("convergence").hold_until is None


def test_alert_raised_again_while_being_closed_stays_open(loop: Loop) -> None:
    alert = raise_alert("plugin_failed")
    age(601)
    closed: list[int] = []

    def close() -> None:
        try:
            closed.append(
                close_quiet_alerts(RuleContext(clock.now(), Policy(), frozenset()))["alerts_closed"]
            )
        finally:
            connection.close()

    def is_waiting() -> bool:
        # A statement that waits for a row waits for the transaction that wrote it.
        return bool(
            rows(
                """
                SELECT 1 FROM pg_locks
                WHERE NOT granted AND transactionid = pg_current_xact_id()::xid
                """
            )
        )

    thread = Thread(target=close)
    with transaction.atomic():
        raise_alert("plugin_failed", "again")
        thread.start()
        wait_until(is_waiting, seconds=30, what="it waits for the lock of the alert")
    thread.join()
    alert.refresh_from_db()
    assert (closed, alert.cleared_at, alert.text) == ([0], None, "again")


def test_rule_alert_of_a_dead_process_is_closed_after_its_quiet_time(
    loop: Loop,
) -> None:
    loop.converge()
    TickAlerts().raise_failure("overruns", RuntimeError("no"), now=clock.now())
    loop.memory = Memory()
    age(590)
    loop.converge()
    assert Alert.objects.filter(kind="rule_failed", cleared_at=None).exists()
    age(20)
    loop.converge()
    assert not Alert.objects.filter(kind="rule_failed", cleared_at=None).exists()


def test_cell_lost_alert_is_not_closed_by_age(loop: Loop) -> None:
    raise_alert("cell_lost")
    age(10 * 86_400)
    loop.converge()
    assert Alert.objects.get(kind="cell_lost").cleared_at is None


def test_duplicate_cell_alert_closes_when_registrations_stop(loop: Loop) -> None:
    cell = loop.cell()
    duplicate = FakeCell(loop, cell.name, cell.capacity)
    duplicate.incarnation = "two"
    for _ in range(2):
        assert duplicate.register().verdict == "refused"
        age(590)
        loop.converge()
        assert Alert.objects.get(cleared_at=None).kind == "cell_twin"
    age(20)
    cell.beat()
    loop.converge()
    assert not Alert.objects.filter(cleared_at=None).exists()


def test_job_skipped_alert_stays_open_while_the_job_is_skipped(loop: Loop) -> None:
    job = loop.submit()
    poison = {"ending_as": S.KILLED, "ending_reason": "no such reason"}
    Job.objects.filter(pk=job.pk).update(**poison)
    for _ in range(3):
        loop.converge()
        age(590)
    (alert,) = Alert.objects.all()
    assert (alert.kind, alert.cleared_at) == ("job_skipped", None)
    Job.objects.filter(pk=job.pk).update(ending_reason="cancelled")
    age(600)
    loop.converge()
    assert loop.state(job) == "KILLED"
    assert not Alert.objects.filter(cleared_at=None).exists()


def test_manually_closed_alert_leaves_an_audit_line_and_can_reopen(
    loop: Loop,
) -> None:
    alert = raise_alert("cell_lost", "cell it is lost")
    for _ in range(2):
        close_alert(alert_id=alert.pk, actor="olga", reason="scrapped", now=clock.now())
    line = AuditLine.objects.get(action="close.alert")
    assert (line.actor, line.subject) == ("olga", "alert cell_lost: it")
    assert line.text == "scrapped; cell it is lost"
    assert raise_alert("cell_lost").pk != alert.pk
    with pytest.raises(NotFound):
        close_alert(alert_id=0, actor="olga", reason="", now=clock.now())


def test_full_store_has_an_alert_until_space_is_free(loop: Loop, settings: Any) -> None:
    before = settings.CELLRUN
    for floor in (1_000_000_000, 0):
        settings.CELLRUN = before.model_copy(update={"store_min_free_mib": floor})
        loop.converge()
        texts = Alert.objects.filter(kind="store_full", cleared_at=None).values_list("text")
        assert [("CELLRUN_STORE_MIN_FREE_MIB" in text) for (text,) in texts] == [True] * bool(floor)
