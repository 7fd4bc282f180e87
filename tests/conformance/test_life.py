"""Every driver reports each step of an attempt once, in order, and starts it at most once."""

import time
from dataclasses import replace
from typing import Any

import pytest

from controlplane.contract.states import FailureKind
from tests.conformance.kit import Kit, until
from workers.attempt.events import BuildingEvent, EndedEvent, Launch, Permit, StartedEvent
from workers.attempt.outcome import (
    EXIT,
    KILLED_OUTSIDE,
    LEASE_OVER,
    STOPPED,
    TIMEOUT,
    VANISHED,
)

GRACE = 0.8  # long enough to differ from none, short enough to wait for


def begun(kit: Kit, command: tuple[str, ...], **spec: Any) -> Launch:
    """A launch that runs."""
    launch = kit.launch(*command, **spec)
    kit.driver.start(launch)
    kit.events.started(launch.uid)
    return launch


def test_success_is_reported_once_and_in_order(kit: Kit) -> None:
    launch = kit.launch(*kit.exits(0))
    kit.driver.start(launch)
    ended = kit.events.ended(launch.uid)
    kinds = [
        type(event) for event in kit.events.of(launch.uid) if not isinstance(event, BuildingEvent)
    ]
    assert kinds == [StartedEvent, EndedEvent]
    assert isinstance(kit.events.of(launch.uid)[-1], EndedEvent)
    assert (ended.exit_code, ended.failure_kind, ended.reason) == (0, None, None)
    assert ended.started_at is not None
    assert ended.started_at <= ended.at <= time.time() + 1
    assert kit.starts(launch.uid) == 1


def test_failure_reports_the_exit_code_of_the_program(kit: Kit) -> None:
    launch = kit.launch(*kit.exits(7))
    kit.driver.start(launch)
    ended = kit.events.ended(launch.uid)
    assert (ended.exit_code, ended.failure_kind, ended.reason) == (7, None, EXIT)
    assert ended.message == "exit status 7"


def test_concurrent_attempts_each_end_once(kit: Kit) -> None:
    launches = [kit.launch(*kit.exits(number % 2)) for number in range(12)]
    for launch in launches:
        kit.driver.start(launch)
    assert [kit.events.ended(launch.uid).exit_code for launch in launches] == [0, 1] * 6
    assert all(kit.starts(launch.uid) == 1 for launch in launches)


def test_second_start_changes_nothing(kit: Kit) -> None:
    launch = kit.launch(*kit.sleeps(0.5))
    kit.driver.start(launch)
    kit.driver.start(launch)
    kit.events.started(launch.uid)
    kit.driver.start(launch)
    kit.driver.adopt(launch)
    kit.events.ended(launch.uid)
    kit.driver.start(launch)
    assert kit.starts(launch.uid) == 1
    assert sum(isinstance(event, EndedEvent) for event in kit.events.of(launch.uid)) == 1


def test_nothing_is_created_without_a_permit(kit: Kit) -> None:
    launch = replace(kit.launch(*kit.exits(0)), permit=lambda: Permit.NEVER)
    kit.driver.start(launch)
    ended = kit.events.ended(launch.uid)
    assert (ended.failure_kind, ended.reason) == (FailureKind.OUTSIDE, LEASE_OVER)
    assert ended.never_created
    assert kit.starts(launch.uid) == 0


# ----------------------------------------------------------------------------- a new cell process


def test_start_of_a_running_attempt_adopts_it(kit: Kit) -> None:
    launch = begun(kit, kit.sleeps(1.5, then_exit=4))
    kit.begin_again()
    kit.driver.start(launch)
    assert kit.events.ended(launch.uid).exit_code == 4
    assert kit.starts(launch.uid) == 1


def test_adopted_attempt_ends_with_its_real_exit_code(kit: Kit) -> None:
    launch = begun(kit, kit.sleeps(1.5, then_exit=5))
    first = kit.events.started(launch.uid)
    kit.begin_again()
    kit.driver.adopt(launch)
    assert kit.events.started(launch.uid).at == pytest.approx(first.at, abs=1)
    ended = kit.events.ended(launch.uid)
    assert (ended.exit_code, ended.failure_kind) == (5, None)
    assert kit.starts(launch.uid) == 1


def test_attempt_ended_before_its_adoption_has_its_real_exit_code(kit: Kit) -> None:
    launch = begun(kit, kit.sleeps(0.3, then_exit=6))
    kit.begin_again()
    until(lambda: [found for found in kit.driver.find() if not found.running])
    kit.driver.adopt(launch)
    ended = kit.events.ended(launch.uid)
    assert ended.exit_code == 6
    assert ended.started_at is not None
    assert kit.starts(launch.uid) == 1


def test_adoption_of_an_unknown_attempt_reports_vanished(kit: Kit) -> None:
    launch = kit.launch(*kit.exits(0))
    kit.driver.adopt(launch)
    ended = kit.events.ended(launch.uid)
    assert (ended.failure_kind, ended.reason) == (FailureKind.OUTSIDE, VANISHED)
    assert (ended.exit_code, ended.started_at) == (None, None)
    assert not ended.never_created  # as far as the driver can know
    assert kit.starts(launch.uid) == 0


def test_closed_driver_reports_nothing_and_attempts_continue(kit: Kit) -> None:
    launch = begun(kit, kit.sleeps(0.5))
    events = kit.events
    kit.begin_again()
    until(lambda: [found for found in kit.driver.find() if not found.running])
    assert not any(isinstance(event, EndedEvent) for event in events.of(launch.uid))


# ----------------------------------------------------------------------------- outsiders


def test_kill_from_outside_has_a_distinct_reason(kit: Kit) -> None:
    launch = begun(kit, kit.sleeps(60))
    kit.kill_outside(launch.uid)
    ended = kit.events.ended(launch.uid)
    assert (ended.exit_code, ended.failure_kind) == (137, FailureKind.OUTSIDE)
    assert ended.reason == KILLED_OUTSIDE


def test_container_removed_from_outside_is_reported(kit: Kit) -> None:
    launch = begun(kit, kit.sleeps(60))
    kit.remove_outside(launch.uid)
    ended = kit.events.ended(launch.uid)
    assert ended.failure_kind is FailureKind.OUTSIDE
    # An engine kills what it removes: an inspection between the two finds the kill.
    assert (ended.exit_code, ended.reason) in ((None, VANISHED), (137, KILLED_OUTSIDE))


# ----------------------------------------------------------------------------- stops


def test_stop_ends_an_obedient_attempt_before_the_grace_period(kit: Kit) -> None:
    launch = begun(kit, kit.obedient())
    kit.wait_until_ready(launch.uid)
    kit.driver.stop(launch.uid, grace_seconds=1000, force=False)
    ended = kit.events.ended(launch.uid)
    assert (ended.exit_code, ended.failure_kind, ended.reason) == (143, None, STOPPED)


def test_stop_sends_the_signal_of_the_spec(real_kit: Kit) -> None:
    launch = begun(real_kit, real_kit.obedient("USR1"), stop_signal="USR1")
    real_kit.wait_until_ready(launch.uid)
    real_kit.driver.stop(launch.uid, grace_seconds=1000, force=False)
    assert real_kit.events.ended(launch.uid).exit_code == 143


def test_attempt_ignoring_the_stop_is_killed_after_the_grace_period(kit: Kit) -> None:
    launch = begun(kit, kit.deaf(300))
    kit.wait_until_ready(launch.uid)
    stopped_at = time.monotonic()
    kit.driver.stop(launch.uid, grace_seconds=GRACE, force=False)
    ended = kit.events.ended(launch.uid)
    assert time.monotonic() - stopped_at >= GRACE
    assert (ended.exit_code, ended.failure_kind, ended.reason) == (137, None, STOPPED)


def test_forced_stop_kills_at_once(kit: Kit) -> None:
    launch = begun(kit, kit.deaf(300))
    kit.wait_until_ready(launch.uid)
    kit.driver.stop(launch.uid, grace_seconds=200, force=False)
    kit.driver.stop(launch.uid, grace_seconds=200, force=False)
    kit.driver.stop(launch.uid, grace_seconds=200, force=True)
    ended = kit.events.ended(launch.uid)
    assert (ended.exit_code, ended.reason) == (137, STOPPED)


def test_slow_stop_does_not_delay_other_stops(kit: Kit) -> None:
    slow = [begun(kit, kit.deaf(300)) for _ in range(3)]
    quick = begun(kit, kit.deaf(300))
    for launch in slow:
        kit.wait_until_ready(launch.uid)
        kit.driver.stop(launch.uid, grace_seconds=100, force=False)
    kit.driver.stop(quick.uid, grace_seconds=0.1, force=False)
    assert kit.events.ended(quick.uid).reason == STOPPED
    assert not any(isinstance(e, EndedEvent) for launch in slow for e in kit.events.of(launch.uid))


def test_stop_at_any_time_ends_the_attempt_exactly_once(kit: Kit) -> None:
    launches = [kit.launch(*kit.sleeps(300)) for _ in range(8)]
    for number, launch in enumerate(launches):
        kit.driver.start(launch)
        if number % 2:
            until(lambda uid=launch.uid: kit.events.of(uid))  # type: ignore[misc]
        kit.driver.stop(launch.uid, grace_seconds=0, force=True)
    for launch in launches:
        ended = kit.events.ended(launch.uid)
        assert (ended.failure_kind, ended.reason) == (None, STOPPED)
        started = any(isinstance(event, StartedEvent) for event in kit.events.of(launch.uid))
        assert started == (ended.started_at is not None)
        assert not (started and ended.never_created)
        assert sum(isinstance(event, EndedEvent) for event in kit.events.of(launch.uid)) == 1
    assert not any(found.running for found in kit.driver.find())


def test_stop_of_an_unknown_or_ended_attempt_changes_nothing(kit: Kit) -> None:
    kit.driver.stop("nobody", grace_seconds=0, force=True)
    launch = kit.launch(*kit.exits(3))
    kit.driver.start(launch)
    ended = kit.events.ended(launch.uid)
    kit.driver.stop(launch.uid, grace_seconds=0, force=True)
    assert (ended.exit_code, ended.reason) == (3, EXIT)
    assert kit.events.of(launch.uid)[-1] is ended


def test_stop_ends_an_adopted_attempt(kit: Kit) -> None:
    launch = begun(kit, kit.sleeps(300))
    kit.begin_again()
    kit.driver.adopt(launch)
    kit.driver.stop(launch.uid, grace_seconds=0.1, force=False)
    assert kit.events.ended(launch.uid).reason == STOPPED


def test_stop_of_an_adopted_attempt_honours_the_grace_period(kit: Kit) -> None:
    launch = begun(kit, kit.obedient())
    kit.wait_until_ready(launch.uid)
    kit.begin_again()
    kit.driver.adopt(launch)
    kit.driver.stop(launch.uid, grace_seconds=60, force=False)
    ended = kit.events.ended(launch.uid)
    assert (ended.exit_code, ended.reason, ended.never_created) == (143, STOPPED, False)


# ----------------------------------------------------------------------------- timeouts


def test_timeout_ends_the_attempt_with_reason_timeout(kit: Kit) -> None:
    launch = begun(kit, kit.deaf(300), timeout_seconds=1.0, stop_grace_seconds=0.2)
    ended = kit.events.ended(launch.uid)
    assert (ended.exit_code, ended.failure_kind, ended.reason) == (137, None, TIMEOUT)
    assert ended.started_at is not None
    assert ended.at - ended.started_at >= 1.0


def test_timeout_keeps_counting_across_a_cell_restart(kit: Kit) -> None:
    launch = begun(kit, kit.sleeps(300), timeout_seconds=1.0, stop_grace_seconds=0.2)
    kit.begin_again()
    kit.driver.adopt(launch)
    ended = kit.events.ended(launch.uid)
    assert (ended.failure_kind, ended.reason) == (None, TIMEOUT)


def test_timeout_reason_survives_a_cell_restart_during_the_stop(real_kit: Kit) -> None:
    kit = real_kit
    command = ("sh", "-c", "trap 'echo told; sleep 1; exit 7' TERM; sleep 300 & wait")
    launch = begun(kit, command, timeout_seconds=0.5, stop_grace_seconds=60)
    until(lambda: "told" in kit.log(launch.uid))
    kit.begin_again()
    kit.driver.adopt(launch)
    ended = kit.events.ended(launch.uid)
    assert (ended.exit_code, ended.failure_kind, ended.reason) == (7, None, TIMEOUT)


def test_exit_before_the_timeout_wins(kit: Kit) -> None:
    launch = kit.launch(*kit.exits(2), timeout_seconds=30)
    kit.driver.start(launch)
    assert kit.events.ended(launch.uid).reason == EXIT


# ----------------------------------------------------------------------------- traces


def test_find_lists_running_and_ended_attempts_until_removed(kit: Kit) -> None:
    runs = begun(kit, kit.sleeps(300))
    over = kit.launch(*kit.exits(0))
    kit.driver.start(over)
    kit.events.ended(over.uid)
    kit.begin_again()
    assert {found.uid: found.running for found in kit.driver.find()} == {
        runs.uid: True,
        over.uid: False,
    }
    kit.driver.remove(over.uid)
    kit.driver.remove(over.uid)
    until(lambda: {found.uid for found in kit.driver.find()} == {runs.uid})


def test_remove_of_a_running_attempt_kills_it_and_reports_the_end(kit: Kit) -> None:
    launch = begun(kit, kit.deaf(300))
    kit.driver.remove(launch.uid)
    assert kit.events.ended(launch.uid).reason == STOPPED
    until(lambda: not list(kit.driver.find()))


def test_remove_of_an_unadopted_attempt_kills_it(kit: Kit) -> None:
    begun(kit, kit.deaf(300))
    kit.begin_again()
    (found,) = kit.driver.find()
    kit.driver.remove(found.uid)
    until(lambda: not list(kit.driver.find()))
