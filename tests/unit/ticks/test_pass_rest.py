"""Passes of placement rest on a busy machine, and only there."""

import pytest

from controlplane.ticks import placement
from controlplane.ticks.pass_rest import MAX_REST_SECONDS, PassRest


class Machine:
    """A clock of passes: each takes CPU time of its thread and waits for the rest of its time."""

    def __init__(self) -> None:
        self.now, self.cpu = 100.0, 5.0
        self.rests: list[float] = []
        self.rest = PassRest(timer=lambda: self.now, cpu_timer=lambda: self.cpu, sleep=self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.now += seconds

    def run(self, seconds: float, *, cpu: float, is_pass: bool = True) -> None:
        def work() -> bool:
            self.now += seconds
            self.cpu += cpu
            return is_pass

        self.rest.run(work)


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_idle_machine_never_rests(machine: Machine) -> None:
    """Half of a pass is the time of PostgreSQL."""
    for _ in range(20):
        machine.run(0.018, cpu=0.008)
    assert machine.rests == []


def test_single_slow_pass_delays_no_other(machine: Machine) -> None:
    for seconds in (0.018, 0.5, 0.018, 0.018):
        machine.run(seconds, cpu=0.008)
    assert machine.rests == []


def test_busy_machine_rests_between_passes(machine: Machine) -> None:
    for _ in range(5):
        machine.run(0.045, cpu=0.013)
    assert len(machine.rests) == 3
    assert all(0.045 < rest <= MAX_REST_SECONDS for rest in machine.rests)


def test_rest_is_bounded_however_long_a_pass_takes(machine: Machine) -> None:
    for _ in range(3):
        machine.run(2.0, cpu=0.1)
    assert machine.rests == [pytest.approx(MAX_REST_SECONDS)]


def test_rest_is_over_when_its_time_has_passed(machine: Machine) -> None:
    machine.run(2.0, cpu=0.1)
    machine.run(2.0, cpu=0.1)
    machine.now += MAX_REST_SECONDS
    machine.run(0.018, cpu=0.008)
    assert machine.rests == []


def test_rests_end_with_the_load(machine: Machine) -> None:
    for _ in range(3):
        machine.run(2.0, cpu=0.1)
    machine.rests.clear()
    for _ in range(5):
        machine.run(0.018, cpu=0.008)
    assert machine.rests == [pytest.approx(MAX_REST_SECONDS)]


def test_needless_wakes_change_no_rest(machine: Machine) -> None:
    """A run without waiting tasks is no pass, however long it takes."""
    machine.run(2.0, cpu=0.1)
    machine.run(3.0, cpu=0.0, is_pass=False)
    machine.run(0.018, cpu=0.008)
    machine.run(0.018, cpu=0.008)
    assert machine.rests == []


def test_failed_pass_is_no_measure(machine: Machine) -> None:
    def fail() -> bool:
        machine.now += 2.0
        raise RuntimeError("the database is unavailable")

    for _ in range(3):
        with pytest.raises(RuntimeError):
            machine.rest.run(fail)
    assert machine.rests == []


def test_placement_task_rests(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(*, woken: bool) -> bool:
        machine.now += 2.0
        machine.cpu += 0.1
        return True

    monkeypatch.setattr(placement, "run", work)
    monkeypatch.setattr(placement, "take_wake", lambda name: None)
    monkeypatch.setattr(placement.placement, "pass_rest", machine.rest)
    for _ in range(3):
        placement.placement(woken=True)
    assert machine.rests == [pytest.approx(MAX_REST_SECONDS)]
