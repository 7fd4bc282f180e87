"""Sessions of users in running attempts: which are admitted, who may claim them, when they end."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum

from controlplane.contract.states import TaskState
from controlplane.domain.errors import Conflict
from controlplane.domain.state.states import CellState

# `kubectl exec` and `docker exec` have no such limits; these keep one user from using up the
# connections of web.
MAX_SESSIONS_OF_ATTEMPT = 4
MAX_SESSIONS_OF_USER = 32
# The cell has this time to claim a session, and both sides to connect again.
CLAIM_SECONDS = 30.0
ABSENCE_SECONDS = 30.0
# A cell sends a heartbeat each 5 s or more often.
SILENT_SECONDS = 15.0
MAX_REASON = 500


class ExecState(IntEnum):
    """The state of a session; its values are stored."""

    REQUESTED = 1
    """The cell has not claimed it."""
    OPEN = 2
    """The cell runs the program."""
    ENDED = 3


UNCLAIMED = "the cell did not answer"
CLIENT_GONE = "the client was not connected for 30 s"
CELL_GONE = "the cell was not connected for 30 s"
RELEASED = "the attempt was released"
NOT_PERMITTED = "the token was revoked or has expired, or its user lost the role"
STREAM_LOST = "Redis lost the stream of the session"


@dataclass(frozen=True, slots=True)
class ExecFacts:
    """What decides on a request for a session. `cell_seen_at`: its last message."""

    state: TaskState
    is_released: bool
    is_stopping: bool
    cell: str
    cell_state: CellState
    cell_seen_at: datetime | None
    pool: str
    is_allowed: bool
    sessions_of_attempt: int
    sessions_of_user: int


def check_request(facts: ExecFacts, *, now: datetime) -> None:
    """Raise Conflict if no session can begin in the attempt."""
    if not facts.is_allowed:
        raise Conflict(f"pool {facts.pool} does not allow exec (exec_allowed)")
    if facts.state is not TaskState.RUNNING or facts.is_released:
        raise Conflict(f"the attempt is {facts.state.name}: exec needs a RUNNING attempt")
    if facts.is_stopping:
        raise Conflict("the attempt is being stopped")
    if facts.cell_state is CellState.LOST or _is_silent(facts.cell_seen_at, now):
        raise Conflict(f"cell {facts.cell} does not answer")
    if facts.sessions_of_attempt >= MAX_SESSIONS_OF_ATTEMPT:
        raise Conflict(
            f"the attempt has {facts.sessions_of_attempt} exec sessions: the limit is"
            f" {MAX_SESSIONS_OF_ATTEMPT}; end one of them first"
        )
    if facts.sessions_of_user >= MAX_SESSIONS_OF_USER:
        raise Conflict(
            f"you have {facts.sessions_of_user} exec sessions: the limit is"
            f" {MAX_SESSIONS_OF_USER}; end one of them first"
        )


def _is_silent(seen_at: datetime | None, now: datetime) -> bool:
    return seen_at is None or now - seen_at > timedelta(seconds=SILENT_SECONDS)


class ExecClaim(IntEnum):
    """The response to a cell that connects to a session."""

    NEW = 1
    """It may start the program."""
    CONTINUED = 2
    """The same process continues."""
    REFUSED = 3
    """Another process has claimed it, or it has ended."""


def decide_claim(
    state: ExecState, nonce_of_claim: str, nonce: str, *, expires: datetime, now: datetime
) -> ExecClaim:
    """Return whether a process of the cell that presents `nonce` may run the program."""
    if state is ExecState.REQUESTED:
        return ExecClaim.NEW if now < expires else ExecClaim.REFUSED
    is_same = state is ExecState.OPEN and nonce == nonce_of_claim
    return ExecClaim.CONTINUED if is_same else ExecClaim.REFUSED


def expires_at(requested_at: datetime) -> datetime:
    """Return when a session ends that no cell has claimed."""
    return requested_at + timedelta(seconds=CLAIM_SECONDS)
