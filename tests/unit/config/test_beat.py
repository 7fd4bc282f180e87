"""Beat sleeps from one due entry to the next."""

from datetime import UTC, datetime, timedelta

from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import schedule
from kombu.utils.imports import symbol_by_name

from controlplane.config.beat import Scheduler
from controlplane.config.celery import app

START = datetime(2031, 1, 1, tzinfo=UTC)
ENTRIES = {"often": 1.0, "sometimes": 2.5, "seldom": 10.0}


class _Scheduler(Scheduler):
    """The scheduler without file and broker; it records the names of entries."""

    producer = None

    def __init__(self, entries: dict[str, ScheduleEntry]) -> None:
        super().__init__(Celery(set_as_current=False), schedule=entries, max_interval=1, lazy=True)
        self.sent: list[str] = []

    @property
    def schedule(self) -> dict[str, ScheduleEntry]:
        entries: dict[str, ScheduleEntry] = self.data
        return entries

    def apply_entry(self, entry: ScheduleEntry, producer: object = None) -> None:
        self.sent.append(entry.name)


class _Clock:
    def __init__(self) -> None:
        self.now = START


def _schedule_of(clock: _Clock) -> dict[str, ScheduleEntry]:
    return {
        name: ScheduleEntry(
            name=name,
            task=name,
            schedule=schedule(seconds, nowfun=lambda: clock.now),
            last_run_at=START,
            app=Celery(set_as_current=False),
        )
        for name, seconds in ENTRIES.items()
    }


def test_entries_are_sent_when_due_and_beat_sleeps_in_between() -> None:
    """A hundred seconds: each entry is sent at its interval, in a few steps for each."""
    clock = _Clock()
    scheduler = _Scheduler(_schedule_of(clock))
    steps = 0
    while clock.now < START + timedelta(seconds=100):
        seconds = scheduler.tick()
        if seconds > 0:
            # What `time.sleep` adds at least.
            clock.now += timedelta(seconds=seconds, microseconds=60)
        steps += 1
        assert steps < 1000, f"beat polls: {scheduler.sent}"
    counts = {name: scheduler.sent.count(name) for name in ENTRIES}
    assert 98 <= counts["often"] <= 100
    assert 38 <= counts["sometimes"] <= 40
    assert 9 <= counts["seldom"] <= 10
    assert steps <= 4 * len(scheduler.sent)


def test_beat_uses_this_scheduler() -> None:
    assert symbol_by_name(app.conf.beat_scheduler) is Scheduler
