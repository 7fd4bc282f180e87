"""Registration: detect restarts, new incarnations, duplicate cells and unsupported versions.

A cell that registers with unknown attempts becomes READY only when these are gone.
"""

from dataclasses import dataclass
from enum import StrEnum

from controlplane.domain.cells.enrolment import describe_hold
from controlplane.domain.state.states import CellState, Quarantine

# A registration clears them; a duplicate that still runs raises its own again.
ALERTS_OF_ABSENCE = ("cell_lost", "cell_twin", "registration_failed")
"""Kinds of alerts about a cell that does not register, or cannot."""


class RegistrationDecision(StrEnum):
    """The verdict on a Register message."""

    ACCEPTED = "accepted"
    DRAW_ANEW = "draw_anew"  # the cell must stop everything and begin a new incarnation
    REFUSED = "refused"  # another incarnation has the lease: retry later


@dataclass(frozen=True, slots=True)
class Registration:
    """The verdict, an explanation, and the state of an accepted cell.

    `cause`: of a quarantine. `is_held`: whether it is CORDONED because of a mismatch.
    """

    verdict: RegistrationDecision
    why: str
    state: CellState
    cause: Quarantine | None = None
    is_held: bool = False


def decide_registration(
    *,
    known_incarnation: str,
    known_state: CellState,
    ordered_state: CellState,
    known_seq: int,
    incarnation: str,
    seq: int,
    is_supported: bool,
    unknown_attempts: int = 0,
    mismatch: str = "",
) -> Registration:
    """Decide on a Register message.

    `is_supported`: whether the cell's wire version is supported. `ordered_state`: the state that an
    operator ordered, which is restored. `unknown_attempts`: number of attempts in its inventory
    that do not belong to this incarnation; a quarantine lasts until they are gone. `mismatch`: how
    its claims differ from its enrolment; it is CORDONED as long as they do.
    """

    def accept(why: str, state: CellState) -> Registration:
        return _accept(why, state, is_supported, unknown_attempts, mismatch)

    if not known_incarnation:
        return accept("first registration", ordered_state)
    if incarnation != known_incarnation:
        if known_state is CellState.LOST:
            return accept("new incarnation", ordered_state)
        why = "another incarnation of this cell holds its lease; it must be lost first"
        return Registration(RegistrationDecision.REFUSED, why, known_state)
    if known_state is CellState.LOST:
        why = "this incarnation was declared lost; its attempts run elsewhere"
        return Registration(RegistrationDecision.DRAW_ANEW, why, known_state)
    if seq < known_seq:
        why = "older than this incarnation's known state: its journal was restored or rolled back"
        return Registration(RegistrationDecision.DRAW_ANEW, why, known_state)
    is_kept = known_state is CellState.QUARANTINED
    return accept("restarted", known_state if is_kept else ordered_state)


def _accept(
    why: str, state: CellState, is_supported: bool, unknown_attempts: int, mismatch: str
) -> Registration:
    if not is_supported:
        return Registration(
            RegistrationDecision.ACCEPTED,
            "cordoned: its wire version is no longer supported",
            CellState.CORDONED,
        )
    if unknown_attempts and state in (CellState.READY, CellState.QUARANTINED):
        what = "1 attempt" if unknown_attempts == 1 else f"{unknown_attempts} attempts"
        return Registration(
            RegistrationDecision.ACCEPTED,
            f"it registered with {what} that it must not have",
            CellState.QUARANTINED,
            Quarantine.ORPHANS,
        )
    if mismatch and state is CellState.READY:
        return Registration(
            RegistrationDecision.ACCEPTED,
            describe_hold(mismatch),
            CellState.CORDONED,
            is_held=True,
        )
    return Registration(RegistrationDecision.ACCEPTED, why, state)
