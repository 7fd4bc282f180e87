"""Placement pauses between passes that wait for a core, and only between those."""

import itertools
import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.ticks import placement
from controlplane.ticks.pass_pause import (
    MAX_PAUSE_SECONDS,
    PassPause,
    find_waited_seconds,
)


class Machine:
    """A clock, and what the thread of the passes has waited for a core."""

    def __init__(self) -> None:
        self.now, self.waited = 100.0, 5.0
        self.pauses: list[float] = []
        self.pause = PassPause(
            timer=lambda: self.now, waited=lambda: self.waited, sleep=self._sleep
        )

    def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def work(self, *, waited: float) -> None:
        """Work for a long time, also of PostgreSQL, and wait for a core."""
        self.now += 1.0 + waited
        self.waited += waited

    def run_pass(self, *, waited: float) -> None:
        self.pause.wait()
        self.pause.measure(lambda: self.work(waited=waited))


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_idle_machine_never_pauses(machine: Machine) -> None:
    """However long a pass takes: a slow database is no busy machine."""
    for _ in range(20):
        machine.run_pass(waited=0.004)
    assert machine.pauses == []


def test_pause_grows_with_the_wait(machine: Machine) -> None:
    for waited in (0.006, 0.010, 0.015, 0.004):
        machine.run_pass(waited=waited)
    assert machine.pauses == [pytest.approx(each) for each in (0.008, 0.04, 0.08)]


def test_pause_is_bounded(machine: Machine) -> None:
    for _ in range(3):
        machine.run_pass(waited=2.0)
    assert machine.pauses == [pytest.approx(MAX_PAUSE_SECONDS)] * 2


def test_pause_runs_from_the_end_of_the_pass(machine: Machine) -> None:
    machine.run_pass(waited=2.0)
    machine.now += 0.04
    machine.run_pass(waited=2.0)
    machine.now += MAX_PAUSE_SECONDS
    machine.run_pass(waited=0.0)
    assert machine.pauses == [pytest.approx(0.06)]


def test_failed_pass_begins_no_pause(machine: Machine) -> None:
    def fail() -> None:
        machine.work(waited=2.0)
        raise RuntimeError("the database is unavailable")

    for _ in range(3):
        with pytest.raises(RuntimeError):
            machine.pause.measure(fail)
        machine.pause.wait()
    assert machine.pauses == []


def test_result_of_the_pass_is_returned(machine: Machine) -> None:
    assert machine.pause.measure(lambda: "placed") == "placed"


def test_wait_of_this_thread_is_in_seconds() -> None:
    began, before = time.monotonic(), find_waited_seconds()
    assert sum(range(1_000_000)) > 0
    waited = find_waited_seconds() - before
    assert before > 0.0
    assert 0.0 <= waited <= time.monotonic() - began


class Ticks:
    """The placement task with counted passes and without a database."""

    def __init__(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.machine = machine
        self.passes = 0
        self.marks = itertools.repeat(0)
        self.placeable = True
        self.uncovered: list[frozenset[int]] = []
        self.is_recent = False
        monkeypatch.setattr(placement, "clock", SimpleNamespace(now=lambda: datetime.now(UTC)))
        monkeypatch.setattr(placement, "find_pending", self._find_pending)
        monkeypatch.setattr(placement, "load_tick", lambda name: SimpleNamespace(mark=self._mark()))
        monkeypatch.setattr(placement, "_is_recent", lambda started_at: self.is_recent)
        monkeypatch.setattr(placement, "run_pass", self._run_pass)
        monkeypatch.setattr(placement, "take_wake", lambda name: None)
        monkeypatch.setattr(placement, "_note", lambda *args, **facts: None)
        monkeypatch.setattr(placement.placement, "pause", machine.pause)

    def run(self, *, woken: bool = True) -> None:
        placement.placement(woken=woken)

    def _mark(self) -> int:
        return next(self.marks)

    def _find_pending(self, tick: str, now: datetime) -> Any:
        self.machine.now += 0.001
        return SimpleNamespace(placeable=self.placeable, any=True, mark=self._mark())

    def _run_pass(self) -> tuple[int, frozenset[int]]:
        self.passes += 1
        self.machine.work(waited=0.010)
        return 1, self.uncovered.pop() if self.uncovered else frozenset()


@pytest.fixture
def ticks(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Ticks:
    return Ticks(machine, monkeypatch)


def test_ticks_pause_between_their_passes(ticks: Ticks) -> None:
    for _ in range(3):
        ticks.run()
    assert ticks.passes == 3
    assert ticks.machine.pauses == [pytest.approx(0.039)] * 2


def test_runs_without_a_pass_neither_pause_nor_end_a_pause(ticks: Ticks) -> None:
    ticks.run()
    ticks.placeable = False
    ticks.run()
    ticks.placeable, ticks.is_recent = True, True
    ticks.run(woken=False)
    assert ticks.machine.pauses == []
    ticks.is_recent = False
    ticks.run()
    assert ticks.machine.pauses == [pytest.approx(0.037)]


def test_pass_for_another_process_pauses(ticks: Ticks) -> None:
    """A process that finds the turn taken leaves a mark; the pass that it causes may wait."""
    ticks.marks = iter((0, 1, 1, 1))
    ticks.run()
    assert ticks.passes == 2
    assert ticks.machine.pauses == [pytest.approx(0.04)]


def test_passes_of_a_backlog_do_not_pause(ticks: Ticks) -> None:
    ticks.uncovered = [frozenset({1}), frozenset({1})]
    ticks.run()
    assert ticks.passes == 3
    assert ticks.machine.pauses == []
