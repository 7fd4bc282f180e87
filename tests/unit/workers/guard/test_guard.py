"""The guard's decisions: it stops and kills in time, records both first, and keeps all."""

from dataclasses import dataclass, field

import pytest

from workers.attempt.events import Permit
from workers.guard.decisions import AGAIN_SECONDS, FIRST_INSPECTION_SECONDS, ContainerFacts, Guard
from workers.guard.watchlist import (
    SILENCE_SECONDS,
    ExclusiveAttempt,
    GuardStatus,
    Watchlist,
    permit,
)

HERE, BEFORE = "this boot", "another boot"
# Stopped at 88.5, killed from 98.5 on.
ITEM = ExclusiveAttempt(deadline=100.0, lease_seconds=30.0, grace_seconds=10.0)


@dataclass
class Engine:
    """Records its calls and the log lines in one list."""

    line: list[str] = field(default_factory=list)
    containers: dict[str, ContainerFacts] = field(default_factory=dict)

    def inspect(self, uid: str, now: float) -> None:
        pass

    def known(self, uid: str) -> ContainerFacts:
        return self.containers.get(uid, ContainerFacts.THERE)

    def stop(self, uid: str, signal_name: str) -> None:
        self.line.append(f"{signal_name} {uid}")

    def kill(self, uid: str) -> None:
        self.line.append(f"KILL {uid}")

    def forget(self, uid: str) -> None:
        self.line.append(f"forget {uid}")


class Desk:
    """A guard, its engine and its status."""

    def __init__(self, **items: ExclusiveAttempt) -> None:
        self.engine = Engine()
        self.statuses: list[GuardStatus] = []
        self.list = Watchlist(1, HERE, items)
        self.guard = self.begin()

    def begin(self) -> Guard:
        status = self.statuses[-1] if self.statuses else None
        self.guard = Guard(self.engine, self._publish, boot_id=HERE, status=status)
        return self.guard

    def _publish(self, status: GuardStatus) -> None:
        if status.fenced != (self.statuses[-1].fenced if self.statuses else {}):
            self.engine.line.append(f"fenced {' '.join(sorted(status.fenced))}")
        self.statuses.append(status)

    def tick(self, now: float) -> list[str]:
        """What it does at `now`."""
        self.engine.line.clear()
        self.guard.tick(self.list, now)
        return list(self.engine.line)

    def show(self, **items: ExclusiveAttempt) -> None:
        self.list = Watchlist(self.list.number + 1, HERE, items)


def test_stop_is_early_enough_for_grace_period_and_kill_before_the_deadline() -> None:
    desk = Desk(u=ITEM)
    assert desk.tick(88.4) == []
    assert desk.tick(88.5) == ["fenced u", "TERM u"]
    assert desk.tick(98.4) == ["TERM u"]
    assert desk.tick(98.5) == ["KILL u"]
    assert ITEM.kills_at < ITEM.deadline


def test_grace_period_is_capped_at_a_third_of_the_lease() -> None:
    greedy = ExclusiveAttempt(100.0, 30.0, 3600.0)
    assert (greedy.stops_at, greedy.kills_at) == (88.5, 98.5)


def test_an_attempt_without_grace_is_killed_at_once() -> None:
    desk = Desk(u=ExclusiveAttempt(100.0, 30.0, 0.0))
    assert desk.tick(98.4) == []
    assert desk.tick(98.5) == ["fenced u", "KILL u"]


def test_guard_sends_the_configured_stop_signal() -> None:
    desk = Desk(u=ExclusiveAttempt(100.0, 30.0, 10.0, "USR1"))
    assert desk.tick(90.0) == ["fenced u", "USR1 u"]


def test_renewed_lease_postpones_the_stop() -> None:
    desk = Desk(u=ITEM)
    desk.tick(88.0)
    desk.show(u=ExclusiveAttempt(105.0, 30.0, 10.0))
    assert desk.tick(90.0) == []
    assert desk.tick(93.5) == ["fenced u", "TERM u"]


def test_lease_renewed_after_fencing_comes_too_late() -> None:
    desk = Desk(u=ITEM)
    desk.tick(90.0)
    desk.show(u=ExclusiveAttempt(1000.0, 30.0, 10.0))
    assert desk.tick(98.5) == ["KILL u"]


def test_guard_repeats_the_kill_until_the_container_has_ended() -> None:
    desk = Desk(u=ITEM)
    desk.tick(90.0)
    assert desk.tick(99.0) == ["KILL u"]
    assert desk.tick(99.0 + AGAIN_SECONDS / 2) == []
    assert desk.tick(99.0 + AGAIN_SECONDS) == ["KILL u"]
    assert desk.tick(1000.0) == ["KILL u"]
    assert not desk.guard.is_done
    desk.engine.containers["u"] = ContainerFacts.OVER
    assert desk.tick(1001.0) == []
    assert desk.guard.is_done
    assert desk.statuses[-1].over == {"u"}


def test_ended_container_is_not_fenced() -> None:
    desk = Desk(u=ITEM)
    desk.engine.containers["u"] = ContainerFacts.OVER
    assert desk.tick(200.0) == []
    assert desk.statuses[-1].fenced == {}
    assert desk.guard.is_done


def test_absent_container_is_fenced_and_killed_if_it_appears() -> None:
    desk = Desk(u=ITEM)
    desk.engine.containers["u"] = ContainerFacts.ABSENT
    desk.tick(80.0)
    assert not desk.guard.is_done
    assert desk.tick(99.0) == ["fenced u", "KILL u"]
    assert desk.guard.is_done
    assert desk.tick(100.0) == ["KILL u"]


def test_late_guard_inspects_the_container_before_fencing() -> None:
    desk = Desk(u=ITEM)
    desk.engine.containers["u"] = ContainerFacts.NOTHING
    assert desk.tick(200.0) == []
    assert desk.tick(200.0 + FIRST_INSPECTION_SECONDS) == ["fenced u", "KILL u"]


def test_next_guard_keeps_the_fenced_attempts() -> None:
    desk = Desk(u=ITEM)
    desk.tick(90.0)
    desk.show(u=ExclusiveAttempt(1000.0, 30.0, 10.0))
    desk.begin()
    assert desk.tick(91.0) == ["TERM u"]
    assert desk.statuses[-1].fenced == {"u": 98.5}


def test_watchlist_of_another_boot_counts_as_expired() -> None:
    desk = Desk()
    desk.list = Watchlist(1, BEFORE, {"u": ITEM})
    assert desk.tick(1.0) == ["fenced u", "KILL u"]


def test_guard_status_of_another_boot_is_ignored() -> None:
    desk = Desk(u=ITEM)
    desk.statuses.append(GuardStatus(1, BEFORE, 90.0, {"u": 1.0}))
    desk.begin()
    assert "KILL u" not in desk.tick(10.0)
    assert desk.statuses[-1].fenced == {}


def test_attempt_removed_from_the_watchlist_is_forgotten() -> None:
    desk = Desk(u=ITEM)
    desk.tick(99.0)
    desk.show()
    assert desk.tick(99.1) == ["forget u", "fenced "]
    assert desk.guard.is_done


def test_guard_status_is_written_every_second_and_on_changes() -> None:
    desk = Desk(u=ITEM)
    for now in (1.0, 1.5, 2.0, 2.5):
        desk.tick(now)
    assert [status.at for status in desk.statuses] == [1.0, 2.0]
    desk.show(u=ITEM, v=ITEM)
    desk.tick(2.6)
    assert desk.statuses[-1].number == 2


def test_guard_wakes_for_its_next_action() -> None:
    desk = Desk(u=ITEM)
    desk.tick(88.0)
    assert desk.guard.wakes_at(88.0) == 88.5
    desk.tick(88.5)
    assert desk.guard.wakes_at(88.5) == 88.5 + AGAIN_SECONDS
    desk.tick(98.3)
    assert desk.guard.wakes_at(98.3) == 98.5
    desk.show()
    desk.tick(99.0)
    assert desk.guard.wakes_at(99.0) == float("inf")


def test_guard_does_not_wake_for_ended_containers() -> None:
    desk = Desk(u=ITEM, v=ITEM)
    desk.engine.containers["u"] = ContainerFacts.OVER
    desk.tick(90.0)
    desk.engine.containers["v"] = ContainerFacts.OVER
    assert desk.tick(99.0) == []
    assert desk.guard.wakes_at(99.0) == 100.0


def test_late_guard_wakes_for_fencing() -> None:
    desk = Desk(u=ITEM)
    desk.engine.containers["u"] = ContainerFacts.NOTHING
    desk.tick(200.0)
    assert desk.guard.wakes_at(200.0) == 200.0 + FIRST_INSPECTION_SECONDS


@pytest.mark.parametrize(
    ("status", "now", "answer"),
    [
        (GuardStatus(2, HERE, 10.0), 10.1, Permit.YES),
        (GuardStatus(3, HERE, 10.0), 10.1, Permit.YES),
        (GuardStatus(1, HERE, 10.0), 10.1, Permit.NOT_YET),
        (GuardStatus(), 10.1, Permit.NOT_YET),
        (GuardStatus(2, BEFORE, 10.0), 10.1, Permit.NOT_YET),
        (GuardStatus(2, HERE, 10.0), 10.0 + SILENCE_SECONDS, Permit.NOT_YET),
        (GuardStatus(2, HERE, 10.0, {"u": 9.0}), 10.1, Permit.NEVER),
        (GuardStatus(2, HERE, 88.5), 88.5, Permit.NEVER),
    ],
)
def test_start_permit_requires_a_watching_guard(
    status: GuardStatus, now: float, answer: Permit
) -> None:
    assert permit(Watchlist(2, HERE, {"u": ITEM}), status, "u", now) is answer


def test_attempt_missing_from_the_watchlist_is_never_permitted() -> None:
    assert permit(Watchlist(2, HERE), GuardStatus(2, HERE, 10.0), "u", 10.1) is Permit.NEVER


def test_watchlist_and_status_survive_a_serialization_round_trip() -> None:
    watchlist = Watchlist(
        3, HERE, {"u": ITEM, "v": ExclusiveAttempt(1.0, 2.0, 3.0, "INT")}, is_last=True
    )
    assert Watchlist.read(watchlist.body()) == watchlist
    status = GuardStatus(3, HERE, 1.5, {"u": 98.5}, frozenset({"v"}))
    assert GuardStatus.read(status.body()) == status
