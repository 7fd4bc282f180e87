"""The history is a full timeline: every phase once, with its own time, and only ever added to.

Source: Flyte, TaskAction status: "PhaseHistory: an append-only log of PhaseTransition objects,
providing a full timeline of the execution".
"""

from datetime import datetime, timedelta

import pytest

from controlplane.contract.messages.phases import MAX_PHASES, PhaseChange, PhaseKind
from controlplane.contract.states import FailureKind
from controlplane.contract.states import TaskState as S
from controlplane.domain.cells.reports import IgnoredReport, decide_report
from controlplane.domain.state.effects import ChangeTask
from tests.harness.domain.facts import CREATED, NOW, SENDER, attempt, report, task

Row = tuple[str, str, str, str, float]


def phase(number: int, seconds: float, text: str = "preparing") -> PhaseChange:
    """A phase of BUILDING, so many seconds after the attempt's creation."""
    return PhaseChange(number, CREATED.timestamp() + seconds, PhaseKind.PHASE, text)


def words(number: int, seconds: float, text: str) -> PhaseChange:
    return PhaseChange(number, CREATED.timestamp() + seconds, PhaseKind.RUNNER, text)


def decided(
    state: S, *phases: PhaseChange, present: S = S.ASSIGNED, **changes: object
) -> ChangeTask:
    incoming = report(state, phases=phases, **changes)
    known = attempt(present)
    decision = decide_report(task(present, known), incoming, SENDER, now=NOW)
    assert isinstance(decision, ChangeTask), decision
    return decision


def rows(change: ChangeTask) -> list[Row]:
    return [
        (
            step.task_from.name,
            step.task_to.name,
            step.reason.value,
            step.message,
            round((step.at - CREATED).total_seconds(), 3),
        )
        for step in change.steps
    ]


def instant(seconds: float) -> float:
    return CREATED.timestamp() + seconds


BUILT = (
    phase(1, 1),
    phase(2, 2, "pulling"),
    phase(3, 5),
    phase(4, 5.25, "creating"),
)


def test_report_from_start_to_end_has_every_phase_with_its_time() -> None:
    change = decided(
        S.SUCCEEDED, *BUILT, exit_code=0, started_at=instant(6), finished_at=instant(9), gone=True
    )
    assert rows(change) == [
        ("ASSIGNED", "BUILDING", "building", "preparing", 1.0),
        ("BUILDING", "BUILDING", "building", "pulling", 2.0),
        ("BUILDING", "BUILDING", "building", "preparing", 5.0),
        ("BUILDING", "BUILDING", "building", "creating", 5.25),
        ("BUILDING", "RUNNING", "started", "", 6.0),
        ("RUNNING", "SUCCEEDED", "succeeded", "", 100.0),
    ]
    assert change.attempt is not None
    assert change.attempt.phase_number == 4


def test_the_phases_and_the_start_in_one_report() -> None:
    change = decided(S.RUNNING, *BUILT[2:], present=S.ASSIGNED, started_at=instant(6))
    assert rows(change)[-2:] == [
        ("BUILDING", "BUILDING", "building", "creating", 5.25),
        ("BUILDING", "RUNNING", "started", "", 6.0),
    ]


def test_several_phases_of_an_unfinished_build() -> None:
    change = decided(S.BUILDING, *BUILT, phase="creating")
    assert [row[:2] for row in rows(change)] == [
        ("ASSIGNED", "BUILDING"),
        *[("BUILDING", "BUILDING")] * 3,
    ]
    assert change.task_to is S.BUILDING


def test_a_build_that_failed_has_its_phases_and_its_failed_tries() -> None:
    tried = PhaseChange(3, instant(7), PhaseKind.TRY, "try 1 of 3 failed: create: no answer")
    change = decided(
        S.FAILED,
        phase(1, 1),
        phase(2, 2, "creating"),
        tried,
        failure_kind=FailureKind.SYSTEM,
        reason="engine",
        gone=True,
    )
    assert rows(change)[1:] == [
        ("BUILDING", "BUILDING", "building", "creating", 2.0),
        ("BUILDING", "BUILDING", "try_failed", "try 1 of 3 failed: create: no answer", 7.0),
        ("BUILDING", "PENDING", "system_failure", "", 100.0),
    ]


def test_runner_phases_are_ordered_around_the_start() -> None:
    change = decided(
        S.RUNNING,
        phase(1, 1),
        words(2, 2, "queued there"),
        words(3, 6, "step 1"),
        words(4, 7, "step 2"),
        started_at=instant(5),
    )
    assert rows(change) == [
        ("ASSIGNED", "BUILDING", "building", "preparing", 1.0),
        ("BUILDING", "BUILDING", "runner_phase", "queued there", 2.0),
        ("BUILDING", "RUNNING", "started", "", 5.0),
        ("RUNNING", "RUNNING", "runner_phase", "step 1", 6.0),
        ("RUNNING", "RUNNING", "runner_phase", "step 2", 7.0),
    ]


def later(known: int, *phases: PhaseChange, state: S = S.BUILDING) -> ChangeTask | IgnoredReport:
    present = attempt(S.BUILDING, phase="creating", phase_number=known)
    incoming = report(state, phase="creating", phases=phases)
    return decide_report(task(S.BUILDING, present), incoming, SENDER, now=NOW)


@pytest.mark.parametrize("known", range(5))
def test_recorded_phases_are_not_written_again(known: int) -> None:
    change = later(known, *BUILT)
    assert isinstance(change, ChangeTask)
    assert [row[3:] for row in rows(change)] == [
        ("preparing", 1.0),
        ("pulling", 2.0),
        ("preparing", 5.0),
        ("creating", 5.25),
    ][known:]


def test_omitted_phases_are_counted() -> None:
    change = later(2, phase(1, 1), words(2, 2, "a"), words(10, 3, "j"), words(12, 4, "l"))
    assert isinstance(change, ChangeTask)
    assert [row[2:4] for row in rows(change)] == [
        ("phases_left_out", "7 phases"),
        ("runner_phase", "j"),
        ("phases_left_out", "1 phase"),
        ("runner_phase", "l"),
    ]


def test_last_recorded_phase_is_marked() -> None:
    change = later(MAX_PHASES - 1, words(MAX_PHASES, 1, "step 200"))
    assert isinstance(change, ChangeTask)
    assert rows(change)[0][3] == "step 200 (the last phase that is kept)"


def test_phase_times_are_clamped_and_never_decrease() -> None:
    change = decided(
        S.BUILDING, phase(1, -50), phase(2, 20, "pulling"), phase(3, 10), phase(4, 5000, "creating")
    )
    assert [row[4] for row in rows(change)] == [0.0, 20.0, 20.0, 100.0]


@pytest.mark.parametrize("gone", [False, True])
def test_late_phases_of_an_ended_attempt_are_recorded(gone: bool) -> None:
    present = attempt(S.FAILED, phase_number=1)
    incoming = report(S.KILLED if gone else S.BUILDING, phases=BUILT[:2], gone=gone)
    change = decide_report(task(S.PENDING, present), incoming, SENDER, now=NOW)
    assert isinstance(change, ChangeTask)
    expected = [("PENDING", "PENDING", "building", "pulling", 2.0)]
    if gone:
        expected.append(("PENDING", "PENDING", "released", "", 100.0))
    assert rows(change) == expected
    assert change.attempt is not None
    assert (change.attempt.phase_number, change.attempt.state_to) == (2, S.FAILED)


def test_known_late_phases_of_an_ended_attempt_are_ignored() -> None:
    present = attempt(S.FAILED, phase_number=2)
    incoming = report(S.BUILDING, phases=BUILT[:2])
    assert decide_report(task(S.PENDING, present), incoming, SENDER, now=NOW) == IgnoredReport(
        "already_ended"
    )
    released = attempt(S.FAILED, released_at=NOW)
    assert decide_report(task(S.PENDING, released), incoming, SENDER, now=NOW) == IgnoredReport(
        "already_ended"
    )


def test_steps_are_in_order_of_time() -> None:
    def times(change: ChangeTask) -> list[datetime]:
        return [step.at for step in change.steps]

    change = decided(S.SUCCEEDED, *BUILT, exit_code=0, started_at=instant(0.5), gone=True)
    assert times(change) == sorted(times(change))
    assert [row[1] for row in rows(change)] == [*["BUILDING"] * 4, "RUNNING", "SUCCEEDED"]
    assert times(change)[-1] == CREATED + timedelta(seconds=100)


@pytest.mark.parametrize("known", [1, MAX_PHASES])
def test_no_phase_is_recorded_after_the_limit(known: int) -> None:
    """A runner may go back and forth between the phases of BUILDING without end."""
    present = attempt(S.BUILDING, phase="preparing", phase_number=known)
    incoming = report(S.BUILDING, phase="creating")
    change = decide_report(task(S.BUILDING, present), incoming, SENDER, now=NOW)
    assert isinstance(change, ChangeTask)
    assert [row[3] for row in rows(change)] == ([] if known == MAX_PHASES else ["creating"])
    assert change.attempt is not None
    assert change.attempt.phase == "creating"
