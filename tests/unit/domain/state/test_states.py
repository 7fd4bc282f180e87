"""The ten states of Iris: numbers, names, colours and kinds as its reference tables them."""

import pytest

from controlplane.contract.states import STATE_OF, FailureKind, Phase, TaskState
from controlplane.contract.states import TaskState as S
from controlplane.domain.state.states import (
    ACTIVE,
    ATTEMPT_STATES,
    COLOURS,
    JOB_STATES,
    OPEN,
    PROGRESS,
    REASONS,
    TERMINAL,
    Band,
    CellState,
    Reason,
)

# Iris, "Task States Reference": number, terminal, colour of the badge.
REFERENCE = {
    "PENDING": (1, False, "#9a6700"),
    "ASSIGNED": (9, False, "#bc4c00"),
    "BUILDING": (2, False, "#8250df"),
    "RUNNING": (3, False, "#0969da"),
    "SUCCEEDED": (4, True, "#1a7f37"),
    "FAILED": (5, True, "#cf222e"),
    "KILLED": (6, True, "#57606a"),
    "WORKER_FAILED": (7, True, "#8250df"),
    "UNSCHEDULABLE": (8, True, "#cf222e"),
    "PREEMPTED": (10, True, "#bc4c00"),
}


def test_states_match_the_reference() -> None:
    found = {state.name: (int(state), state in TERMINAL, COLOURS[state]) for state in S}
    assert found == REFERENCE
    assert set(COLOURS) == set(S)
    assert {number: S[name] for name, (number, *_) in REFERENCE.items()} == STATE_OF


def test_each_state_is_terminal_active_or_pending() -> None:
    assert set(S) == OPEN | TERMINAL
    assert not OPEN & TERMINAL
    assert set(ACTIVE) == {S.ASSIGNED, S.BUILDING, S.RUNNING}
    assert {S.PENDING} == OPEN - ACTIVE


def test_attempt_is_never_pending_or_unschedulable() -> None:
    assert set(S) - ATTEMPT_STATES == {S.PENDING, S.UNSCHEDULABLE}


def test_job_is_never_assigned_building_or_preempted() -> None:
    assert set(S) - JOB_STATES == {S.ASSIGNED, S.BUILDING, S.PREEMPTED}


def test_progress_is_assigned_then_building_then_running() -> None:
    assert sorted(PROGRESS, key=PROGRESS.__getitem__) == [S.ASSIGNED, S.BUILDING, S.RUNNING]
    # A report of what is not in the order counts as -1: less than any stage.
    assert min(PROGRESS.values()) == 0
    assert len(set(PROGRESS.values())) == 3


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_unique_sentence(reason: Reason) -> None:
    sentence = REASONS[reason]
    assert sentence
    assert [other for other in Reason if REASONS[other] == sentence] == [reason]


def test_production_goes_before_interactive_and_batch() -> None:
    assert sorted(Band) == [Band.PRODUCTION, Band.INTERACTIVE, Band.BATCH]
    assert [int(band) for band in sorted(Band)] == [1, 2, 3]


def test_wire_and_stored_values_are_stable() -> None:
    assert {state.value for state in CellState} == {state.name for state in CellState}
    assert {kind.value for kind in FailureKind} == {"user", "system", "outside"}
    assert {phase.value for phase in Phase} == {"pulling", "preparing", "creating", "checking"}
    assert all(TaskState(int(state)) is state for state in TaskState)
