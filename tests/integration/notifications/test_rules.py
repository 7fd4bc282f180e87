"""Rules on PostgreSQL: alerts and ends of jobs become grouped messages, in virtual time."""

from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest

from controlplane import clock
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.notifications import windows
from controlplane.commands.notifications.configure import RuleFields, put_address, put_rule
from controlplane.commands.notifications.windows import collect_events, compose_windows
from controlplane.commands.state.apply import apply
from controlplane.contract.states import TaskState
from controlplane.domain.state.effects import ClearAlert, Effects, RaiseAlert
from controlplane.models import (
    Job,
    JobEnd,
    NotificationEvent,
    NotificationMessage,
)
from tests.integration.notifications.conftest import Loop, bodies

pytestmark = pytest.mark.django_db(transaction=True)

START = datetime(2026, 3, 28, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def add_rule(now: datetime, name: str = "rule", **columns: Any) -> None:
    put_address(name="ops", url="json://example.org", now=now)
    put_rule(name=name, wanted=RuleFields("ops", {"about": "alerts", **columns}), now=now)


def raise_alert(kind: str, subject: str, now: datetime) -> None:
    apply(Effects(alerts=[RaiseAlert(kind, subject, "why")]), now=now)


def clear_alert(kind: str, subject: str, now: datetime) -> None:
    apply(Effects(cleared=[ClearAlert(kind, subject)]), now=now)


def step(now: datetime) -> int:
    """Collect and compose; what is composed is sent at once. Return how many messages."""
    collect_events(now=now)
    composed = compose_windows(now=now)["composed"]
    NotificationMessage.objects.filter(ended_at=None).update(state="delivered", ended_at=now)
    return composed


def test_alerts_are_grouped_in_windows() -> None:
    raise_alert("cell_lost", "before", START - SECOND)
    add_rule(START)
    raise_alert("cell_lost", "a", START)
    assert step(START) == 0
    raise_alert("cell_lost", "b", START + 20 * SECOND)
    assert step(START + 29 * SECOND) == 0
    assert step(START + 30 * SECOND) == 1
    assert bodies() == ["raised: cell_lost a: why\nraised: cell_lost b: why"]
    raise_alert("cell_lost", "c", START + 60 * SECOND)
    clear_alert("cell_lost", "a", START + 70 * SECOND)
    assert step(START + 329 * SECOND) == 0
    assert step(START + 330 * SECOND) == 1
    assert bodies()[1] == "raised: cell_lost c: why\nresolved: cell_lost a: why"
    assert step(START + timedelta(hours=1)) == 0


def test_an_alert_that_was_not_reported_is_not_reported_as_resolved() -> None:
    raise_alert("cell_lost", "before", START - SECOND)
    add_rule(START)
    clear_alert("cell_lost", "before", START + SECOND)
    step(START + 2 * SECOND)
    assert not NotificationEvent.objects.exists()


def test_a_rule_reports_only_its_kinds() -> None:
    add_rule(START, kinds=["cell_lost"])
    add_rule(START, "critical", only_critical=True)
    raise_alert("cell_lost", "a", START)
    raise_alert("mass_loss", "gpu", START)
    step(START)
    found = NotificationEvent.objects.order_by("rule__name").values_list("rule__name", "line")
    assert list(found) == [
        ("critical", "raised: mass_loss gpu: why"),
        ("rule", "raised: cell_lost a: why"),
    ]


def test_quiet_hours_end_with_one_digest_after_a_change_of_the_clock() -> None:
    add_rule(
        START,
        quiet_zone="Europe/Berlin",
        quiet_begin=time(22),
        quiet_end=time(7),
        group_wait_seconds=0,
    )
    night = datetime(2026, 3, 28, 21, tzinfo=UTC)
    for hour in range(7):  # the clock changes from 2:00 to 3:00 meanwhile
        raise_alert("cell_lost", f"c{hour}", night + timedelta(hours=hour))
        assert step(night + timedelta(hours=hour)) == 0
    raise_alert("mass_loss", "gpu", night + timedelta(hours=7))
    assert step(night + timedelta(hours=7)) == 1
    assert bodies() == ["raised: mass_loss gpu: why"]
    assert step(night + timedelta(hours=8) - SECOND) == 0
    assert step(night + timedelta(hours=8)) == 1
    assert bodies()[1].splitlines() == [f"raised: cell_lost c{hour}: why" for hour in range(7)]


def test_events_during_an_unsent_message_are_in_the_next_one() -> None:
    add_rule(START, group_wait_seconds=0, group_interval_seconds=10)
    raise_alert("cell_lost", "a", START)
    collect_events(now=START)
    compose_windows(now=START)
    later = START + timedelta(hours=1)
    raise_alert("cell_lost", "b", later)
    collect_events(now=later)
    assert compose_windows(now=later)["composed"] == 0
    NotificationMessage.objects.update(state="delivered", ended_at=later)
    assert compose_windows(now=later)["composed"] == 1
    assert bodies()[1] == "raised: cell_lost b: why"


def end(loop: Loop, **body: Any) -> Job:
    job = loop.submit(**body)
    cancel_job(job_id=job.pk, reason="enough", force=False, actor="test", now=clock.now())
    loop.converge()
    return job


def test_ends_of_jobs_are_reported_once(loop: Loop) -> None:
    now = clock.now()
    end(loop, name="earlier")
    assert not JobEnd.objects.exists()
    add_rule(now, about="jobs", label="team", states=[int(TaskState.KILLED)])
    add_rule(now, "others", about="jobs", name_pattern="other-*")
    wanted = end(loop, name="wanted", labels={"notify": "team"})
    end(loop, name="unlabelled")
    loop.converge()
    assert step(clock.now()) == 0
    assert step(clock.now() + timedelta(minutes=1)) == 1
    (body,) = bodies()
    assert body.startswith(f"job {wanted.pk} wanted of default/default ended KILLED")
    assert not JobEnd.objects.exists()
    assert not NotificationEvent.objects.exists()
    assert step(clock.now() + timedelta(hours=1)) == 0


def test_more_events_than_are_stored_are_counted(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "MAX_STORED", 2)
    add_rule(clock.now(), about="jobs", group_wait_seconds=0)
    for number in range(5):
        end(loop, name=f"job-{number}")
    assert step(clock.now()) == 1
    message = NotificationMessage.objects.get()
    assert message.title == "Cellrun: 5 events (rule)"
    assert message.body.splitlines()[2:] == ["and 3 more"]
