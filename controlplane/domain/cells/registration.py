"""Whether a cell that registers is the same one again, a successor, a twin, or a ghost.

One that comes with attempts that are not its own is READY only when they are gone.
"""

from dataclasses import dataclass
from enum import StrEnum

from controlplane.domain.state.states import CellState, Quarantine


class RegistrationDecision(StrEnum):
    """The answer to a Register."""

    ACCEPTED = "accepted"
    DRAW_ANEW = "draw_anew"  # stop everything, begin a new incarnation
    REFUSED = "refused"  # try again later: somebody else has the name


@dataclass(frozen=True, slots=True)
class Registration:
    """The verdict, a sentence for people, and the state the cell is in if it is accepted.

    `cause`: what it is QUARANTINED for from now on.
    """

    verdict: RegistrationDecision
    why: str
    state: CellState
    cause: Quarantine | None = None


def decide_registration(
    *,
    known_incarnation: str,
    known_state: CellState,
    ordered_state: CellState,
    known_seq: int,
    incarnation: str,
    seq: int,
    spoken: bool,
    strangers: int = 0,
) -> Registration:
    """Judge a Register. `spoken`: the cell's version of the wire is one that we speak.

    `ordered_state`: what an operator ordered, which it is again whatever became of it meanwhile.
    `strangers`: so many of the attempts that it has are not this incarnation's. What it is
    QUARANTINED for already comes behind that, and does not end before they are gone either.
    """
    if not known_incarnation:
        return _accept("first registration", ordered_state, spoken, strangers)
    if incarnation != known_incarnation:
        if known_state is CellState.LOST:
            return _accept("new incarnation", ordered_state, spoken, strangers)
        why = "another incarnation of this cell holds its lease; it must be lost first"
        return Registration(RegistrationDecision.REFUSED, why, known_state)
    if known_state is CellState.LOST:
        why = "this incarnation was declared lost; its attempts run elsewhere"
        return Registration(RegistrationDecision.DRAW_ANEW, why, known_state)
    if seq < known_seq:
        why = (
            "older than what is known of this incarnation: its journal was restored or rolled back"
        )
        return Registration(RegistrationDecision.DRAW_ANEW, why, known_state)
    is_kept = known_state is CellState.QUARANTINED
    return _accept("restarted", known_state if is_kept else ordered_state, spoken, strangers)


def _accept(why: str, state: CellState, spoken: bool, strangers: int) -> Registration:
    if not spoken:
        return Registration(
            RegistrationDecision.ACCEPTED,
            "cordoned: it speaks too old a version",
            CellState.CORDONED,
        )
    if strangers and state in (CellState.READY, CellState.QUARANTINED):
        what = "1 attempt" if strangers == 1 else f"{strangers} attempts"
        return Registration(
            RegistrationDecision.ACCEPTED,
            f"it came with {what} that it must not have",
            CellState.QUARANTINED,
            Quarantine.STRANGERS,
        )
    return Registration(RegistrationDecision.ACCEPTED, why, state)
