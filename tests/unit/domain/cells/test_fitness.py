"""Heartbeats: an unfit cell, or one with unknown attempts, gets no work until it recovers."""

from datetime import UTC, datetime

import pytest

from controlplane.domain.cells.health import decide_fitness, keep_for_stops
from controlplane.domain.state.effects import ChangeCell, ClearAlert
from controlplane.domain.state.states import ORDERED_STATES, CellState, Quarantine

READY, QUARANTINED = CellState.READY, CellState.QUARANTINED
UNTIL = datetime(2026, 1, 1, tzinfo=UTC)


def decide(
    state: CellState = QUARANTINED,
    cause: str = "",
    *,
    ordered: CellState = READY,
    until: datetime | None = None,
    unfit: str = "",
    holds_unknown_attempts: bool = False,
) -> ChangeCell | None:
    return decide_fitness(
        cell_id=5,
        name="north",
        state=state,
        ordered=ordered,
        cause=cause,
        until=until,
        unfit=unfit,
        holds_unknown_attempts=holds_unknown_attempts,
    )


def test_unfit_ready_cell_is_quarantined() -> None:
    change = decide(READY, unfit="full")
    assert change is not None
    assert (change.state, change.reason, change.cause) == (QUARANTINED, "full", Quarantine.UNFIT)
    assert [state for state in CellState if decide(state, unfit="full")] == [READY]
    assert not any(decide(cause=cause, unfit="full") for cause in Quarantine)


@pytest.mark.parametrize("ordered", ORDERED_STATES)
@pytest.mark.parametrize("cause", [Quarantine.UNFIT, Quarantine.ORPHANS])
def test_cell_that_is_fit_again_returns_to_its_ordered_state(
    cause: Quarantine, ordered: CellState
) -> None:
    change = decide(cause=cause, ordered=ordered)
    assert change is not None
    assert (change.state, change.cause, change.cause_before) == (ordered, None, cause)
    kinds = ("stop_unconfirmed", "cell_failing")
    assert set(change.cleared) == {ClearAlert(kind, "north") for kind in kinds}
    held = decide(cause=cause, holds_unknown_attempts=True)
    assert (held is None) == (cause is Quarantine.ORPHANS)


@pytest.mark.parametrize("cause", ["", Quarantine.STOPS, Quarantine.FAILURES])
def test_heartbeat_does_not_end_a_quarantine_for_stops_or_failures(cause: str) -> None:
    assert decide(cause=cause) is None


def test_end_of_unknown_attempts_does_not_shorten_a_failure_quarantine() -> None:
    change = decide(cause=Quarantine.ORPHANS, until=UNTIL)
    assert change is not None
    assert (change.state, change.cause, change.until) == (QUARANTINED, Quarantine.FAILURES, UNTIL)
    assert (change.cause_before, change.cleared) == (Quarantine.ORPHANS, ())


def test_leftover_quarantine_time_does_not_hold_a_cell_that_is_fit_again() -> None:
    change = decide(cause=Quarantine.UNFIT, until=UNTIL)
    assert change is not None
    assert (change.state, change.until) == (READY, None)


def test_cell_with_unconfirmed_stops_stays_in_quarantine() -> None:
    change = decide(cause=Quarantine.UNFIT)
    assert change is not None
    kept = keep_for_stops(change, 2)
    assert (kept.state, kept.cause) == (QUARANTINED, Quarantine.STOPS)
    assert (kept.reason, kept.cause_before) == ("2 stops are not confirmed", Quarantine.UNFIT)
    assert (bool(change.cleared), kept.cleared) == (True, ())
