"""Registration: first, restarted, returned, a duplicate, or a journal that was rolled back."""

from typing import Any

import pytest

from controlplane.domain.cells.registration import (
    Registration,
    RegistrationDecision,
    decide_registration,
)
from controlplane.domain.state.states import ORDERED_STATES, CellState, Quarantine

READY, LOST, CORDONED = CellState.READY, CellState.LOST, CellState.CORDONED
ACCEPTED, DRAW_ANEW, REFUSED = (
    RegistrationDecision.ACCEPTED,
    RegistrationDecision.DRAW_ANEW,
    RegistrationDecision.REFUSED,
)


def register(
    known: str = "one",
    state: CellState = READY,
    *,
    incarnation: str = "one",
    seq: int = 10,
    is_supported: bool = True,
    ordered: CellState = READY,
    unknown_attempts: int = 0,
    mismatch: str = "",
) -> Registration:
    return decide_registration(
        known_incarnation=known,
        known_state=state,
        ordered_state=ordered,
        known_seq=10,
        incarnation=incarnation,
        seq=seq,
        is_supported=is_supported,
        unknown_attempts=unknown_attempts,
        mismatch=mismatch,
    )


@pytest.mark.parametrize("state", CellState)
def test_first_registration_makes_the_cell_ready(state: CellState) -> None:
    answer = register(known="", state=state)
    assert (answer.verdict, answer.state, answer.why) == (ACCEPTED, READY, "first registration")


@pytest.mark.parametrize("ordered", ORDERED_STATES)
@pytest.mark.parametrize("state", sorted(set(CellState) - {LOST}))
def test_restarted_cell_returns_to_its_ordered_state_or_stays_quarantined(
    state: CellState, ordered: CellState
) -> None:
    answer = register(state=state, ordered=ordered)
    expected = state if state is CellState.QUARANTINED else ordered
    assert (answer.verdict, answer.state, answer.why) == (ACCEPTED, expected, "restarted")


@pytest.mark.parametrize("ordered", ORDERED_STATES)
@pytest.mark.parametrize("known", ["", "two"])
def test_lost_cell_that_returns_gets_its_ordered_state(known: str, ordered: CellState) -> None:
    answer = register(known=known, state=LOST, ordered=ordered)
    assert (answer.verdict, answer.state) == (ACCEPTED, ordered)


@pytest.mark.parametrize(("seq", "verdict"), [(9, DRAW_ANEW), (10, ACCEPTED), (11, ACCEPTED)])
def test_rolled_back_journal_requires_a_new_incarnation(
    seq: int, verdict: RegistrationDecision
) -> None:
    answer = register(seq=seq)
    assert (answer.verdict, answer.state) == (verdict, READY)
    assert ("journal" in answer.why) is (verdict is DRAW_ANEW)


@pytest.mark.parametrize("state", sorted(set(CellState) - {LOST}))
def test_new_incarnation_is_refused_until_the_known_one_is_lost(state: CellState) -> None:
    answer = register(state=state, incarnation="two")
    assert (answer.verdict, answer.state) == (REFUSED, state)
    assert "must be lost first" in answer.why


def test_new_incarnation_of_a_lost_cell_becomes_ready() -> None:
    answer = register(state=LOST, incarnation="two", seq=0)
    assert (answer.verdict, answer.state, answer.why) == (ACCEPTED, READY, "new incarnation")


@pytest.mark.parametrize("seq", [9, 10, 11])
def test_lost_incarnation_that_returns_must_draw_a_new_one(seq: int) -> None:
    answer = register(state=LOST, seq=seq)
    assert (answer.verdict, answer.state) == (DRAW_ANEW, LOST)
    assert "declared lost" in answer.why


@pytest.mark.parametrize(
    "accepted", [{"known": ""}, {}, {"state": LOST, "incarnation": "two"}], ids=str
)
def test_cell_with_an_unsupported_protocol_version_is_cordoned(accepted: dict[str, str]) -> None:
    answer = register(**accepted, is_supported=False)  # type: ignore[arg-type]
    assert (answer.verdict, answer.state) == (ACCEPTED, CORDONED)
    assert "no longer supported" in answer.why
    assert register(incarnation="two", is_supported=False).verdict is REFUSED


@pytest.mark.parametrize(("unknown", "what"), [(1, "1 attempt"), (2, "2 attempts")])
def test_registration_with_unknown_attempts_quarantines_the_cell(unknown: int, what: str) -> None:
    answer = register(state=LOST, incarnation="two", unknown_attempts=unknown)
    assert (answer.verdict, answer.state) == (ACCEPTED, CellState.QUARANTINED)
    assert answer.cause is Quarantine.ORPHANS
    assert answer.why == f"it registered with {what} that it must not have"
    # Whatever it was in quarantine for comes behind that.
    kept = register(state=CellState.QUARANTINED, unknown_attempts=unknown)
    assert (kept.state, kept.cause, kept.why) == (answer.state, answer.cause, answer.why)
    # A cordoned cell stays as ordered; one that must draw a new incarnation ends all.
    assert register(ordered=CORDONED, unknown_attempts=unknown).state is CORDONED
    assert register(state=LOST, unknown_attempts=unknown).verdict is DRAW_ANEW
    assert register(unknown_attempts=0).cause is None


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, CORDONED),
        ({"ordered": CellState.DRAINING}, CellState.DRAINING),
        ({"state": CellState.QUARANTINED}, CellState.QUARANTINED),
        ({"unknown_attempts": 1}, CellState.QUARANTINED),
        ({"state": LOST, "incarnation": "two"}, CORDONED),
        ({"known": ""}, CORDONED),
    ],
)
def test_cell_that_differs_from_its_enrolment_never_gets_ready(
    facts: dict[str, Any], expected: CellState
) -> None:
    answer = register(**facts, mismatch="it reports pool b, but is enrolled in pool a")
    assert (answer.verdict, answer.state) == (ACCEPTED, expected)
    assert answer.is_held == (expected is CORDONED)
    if answer.is_held:
        assert answer.why == (
            "it differs from its enrolment: it reports pool b, but is enrolled in pool a"
        )
