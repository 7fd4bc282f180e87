"""Registration: first, restarted, come back, a twin, or a journal that was rolled back."""

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
    spoken: bool = True,
    ordered: CellState = READY,
    strangers: int = 0,
) -> Registration:
    return decide_registration(
        known_incarnation=known,
        known_state=state,
        ordered_state=ordered,
        known_seq=10,
        incarnation=incarnation,
        seq=seq,
        spoken=spoken,
        unknown_attempts=strangers,
    )


@pytest.mark.parametrize("state", CellState)
def test_a_cell_that_never_registered_is_ready(state: CellState) -> None:
    answer = register(known="", state=state)
    assert (answer.verdict, answer.state, answer.why) == (ACCEPTED, READY, "first registration")


@pytest.mark.parametrize("ordered", ORDERED_STATES)
@pytest.mark.parametrize("state", sorted(set(CellState) - {LOST}))
def test_a_cell_that_restarted_is_as_ordered_or_in_quarantine(
    state: CellState, ordered: CellState
) -> None:
    answer = register(state=state, ordered=ordered)
    expected = state if state is CellState.QUARANTINED else ordered
    assert (answer.verdict, answer.state, answer.why) == (ACCEPTED, expected, "restarted")


@pytest.mark.parametrize("ordered", ORDERED_STATES)
@pytest.mark.parametrize("known", ["", "two"])
def test_a_cell_that_comes_back_is_what_was_ordered(known: str, ordered: CellState) -> None:
    answer = register(known=known, state=LOST, ordered=ordered)
    assert (answer.verdict, answer.state) == (ACCEPTED, ordered)


@pytest.mark.parametrize(("seq", "verdict"), [(9, DRAW_ANEW), (10, ACCEPTED), (11, ACCEPTED)])
def test_a_journal_that_was_rolled_back_is_noticed(seq: int, verdict: RegistrationDecision) -> None:
    answer = register(seq=seq)
    assert (answer.verdict, answer.state) == (verdict, READY)
    assert ("journal" in answer.why) is (verdict is DRAW_ANEW)


@pytest.mark.parametrize("state", sorted(set(CellState) - {LOST}))
def test_another_incarnation_waits_until_the_known_one_is_lost(state: CellState) -> None:
    answer = register(state=state, incarnation="two")
    assert (answer.verdict, answer.state) == (REFUSED, state)
    assert "must be lost first" in answer.why


def test_another_incarnation_of_a_lost_cell_is_ready() -> None:
    answer = register(state=LOST, incarnation="two", seq=0)
    assert (answer.verdict, answer.state, answer.why) == (ACCEPTED, READY, "new incarnation")


@pytest.mark.parametrize("seq", [9, 10, 11])
def test_a_lost_incarnation_that_comes_back_draws_anew(seq: int) -> None:
    answer = register(state=LOST, seq=seq)
    assert (answer.verdict, answer.state) == (DRAW_ANEW, LOST)
    assert "declared lost" in answer.why


@pytest.mark.parametrize(
    "accepted", [{"known": ""}, {}, {"state": LOST, "incarnation": "two"}], ids=str
)
def test_a_cell_that_speaks_too_old_a_version_takes_no_work(accepted: dict[str, str]) -> None:
    answer = register(**accepted, spoken=False)  # type: ignore[arg-type]
    assert (answer.verdict, answer.state) == (ACCEPTED, CORDONED)
    assert "no longer supported" in answer.why
    assert register(incarnation="two", spoken=False).verdict is REFUSED


@pytest.mark.parametrize(("strangers", "what"), [(1, "1 attempt"), (2, "2 attempts")])
def test_who_comes_with_what_is_not_its_own_waits_until_that_is_gone(
    strangers: int, what: str
) -> None:
    answer = register(state=LOST, incarnation="two", unknown_attempts=strangers)
    assert (answer.verdict, answer.state) == (ACCEPTED, CellState.QUARANTINED)
    assert answer.cause is Quarantine.ORPHANS
    assert answer.why == f"it registered with {what} that it must not have"
    # Whatever it was in quarantine for comes behind that.
    kept = register(state=CellState.QUARANTINED, unknown_attempts=strangers)
    assert (kept.state, kept.cause, kept.why) == (answer.state, answer.cause, answer.why)
    # Who gets no work in any case is as ordered; who is told to begin anew ends all of it.
    assert register(ordered=CORDONED, unknown_attempts=strangers).state is CORDONED
    assert register(state=LOST, unknown_attempts=strangers).verdict is DRAW_ANEW
    assert register(unknown_attempts=0).cause is None
