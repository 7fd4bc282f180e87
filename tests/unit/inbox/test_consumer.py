"""The inbox as a step of a worker: when it applies messages and answers heartbeats."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError

from controlplane.inbox import consumer
from controlplane.inbox.consumer import InboxStep

SYNC_SECONDS = 1.0


@dataclass
class Timer:
    at: float
    call: Callable[[], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass
class Hub:
    """An event loop on a clock of its own."""

    now: float = 0.0
    timers: list[Timer] = field(default_factory=list)

    def call_later(self, seconds: float, call: Callable[[], None]) -> Timer:
        timer = Timer(self.now + seconds, call)
        self.timers.append(timer)
        return timer

    def run_until(self, end: float) -> None:
        while due := [one for one in self.timers if not one.is_cancelled and one.at <= end]:
            timer = min(due, key=lambda one: one.at)
            self.timers.remove(timer)
            self.now = max(self.now, timer.at)
            timer.call()
        self.now = end


class Inbox:
    """Heartbeats that are due a second after the last answer; `error` fails each call."""

    def __init__(self, hub: Hub) -> None:
        self.hub, self.answered_at = hub, 0.0
        self.beats: list[str] = []
        self.calls: list[float] = []
        self.answers: list[float] = []
        self.error: Exception | None = None

    @property
    def has_beats(self) -> bool:
        return bool(self.beats)

    @property
    def seconds_until_answer(self) -> float | None:
        return max(self.answered_at + SYNC_SECONDS - self.hub.now, 0.0) if self.beats else None

    def apply(self, raw: Sequence[str], queues: Sequence[str]) -> bool:
        self.calls.append(self.hub.now)
        self.beats += raw
        if self.error is not None:
            raise self.error
        if self.beats and self.hub.now >= self.answered_at + SYNC_SECONDS:
            self.answers.append(self.hub.now)
            self.answered_at, self.beats = self.hub.now, []
        return True

    def note_lost(self, messages: int, error: Exception) -> None:
        pass


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A started step with the hub and the inbox of the test."""
    monkeypatch.setattr(consumer.bootsteps.ConsumerStep, "start", lambda self, consumer: None)
    monkeypatch.setattr(consumer, "connection", SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(consumer, "close_old_connections", lambda: None)
    hub = Hub()
    step: Any = InboxStep(SimpleNamespace(hub=hub))
    step._inbox = Inbox(hub)
    step.start(SimpleNamespace(hub=hub))
    return step


def receive(step: Any, text: str = "beat") -> None:
    step._take("inbox.0", text, None)


def test_waiting_heartbeats_are_answered_without_another_message(step: Any) -> None:
    step._hub.run_until(5.3)
    step._inbox.answered_at = 5.0
    receive(step)
    step._hub.run_until(7.0)
    assert step._inbox.answers == [pytest.approx(6.0, abs=0.01)]
    assert len(step._inbox.calls) == 2
    assert not [one for one in step._hub.timers if not one.is_cancelled]


def test_messages_that_arrive_together_are_one_batch(step: Any) -> None:
    for _ in range(20):
        receive(step)
    step._hub.run_until(0.5)
    assert len(step._inbox.calls) == 1


def test_errors_are_not_repeated_at_once(step: Any) -> None:
    """Heartbeats that are due while the database is down: four tries a second, until it is up."""
    step._inbox.error = OperationalError("down")
    receive(step)
    step._hub.run_until(10.0)
    assert 20 <= len(step._inbox.calls) <= 45
    step._inbox.error = None
    step._hub.run_until(10.5)
    assert len(step._inbox.answers) == 1


def test_failed_close_of_a_connection_delays_no_answer(
    step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OperationalError("cannot close")

    monkeypatch.setattr(consumer, "close_old_connections", fail)
    receive(step)
    with pytest.raises(OperationalError):
        step._hub.run_until(0.5)
    monkeypatch.setattr(consumer, "close_old_connections", lambda: None)
    step._hub.run_until(2.0)
    assert step._inbox.answers == [pytest.approx(1.0, abs=0.3)]


def test_reconnection_that_loses_all_timers_loses_no_message(step: Any) -> None:
    receive(step)
    step._hub = None
    hub = Hub(now=0.1)
    step._inbox.hub = hub
    step.start(SimpleNamespace(hub=hub))
    hub.run_until(2.0)
    assert len(step._inbox.answers) == 1
