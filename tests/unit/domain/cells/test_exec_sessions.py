"""Which exec sessions may begin, and which process of a cell may run their programs."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controlplane.contract.states import TaskState
from controlplane.domain.cells.exec_sessions import (
    ExecClaim,
    ExecFacts,
    ExecState,
    check_request,
    decide_claim,
    expires_at,
)
from controlplane.domain.errors import Conflict
from controlplane.domain.roles import Access, Permission, Place, Role, may
from controlplane.domain.state.states import CellState

NOW = datetime(2031, 5, 4, tzinfo=UTC)
POSSIBLE = ExecFacts(
    state=TaskState.RUNNING,
    is_released=False,
    is_stopping=False,
    cell="cell-1",
    cell_state=CellState.READY,
    cell_seen_at=NOW - timedelta(seconds=5),
    pool="gpu",
    is_allowed=True,
    sessions_of_attempt=3,
    sessions_of_user=31,
)


@pytest.mark.parametrize("state", [CellState.READY, CellState.CORDONED, CellState.DRAINING])
def test_running_attempt_of_a_cell_that_answers_can_be_entered(state: CellState) -> None:
    check_request(replace(POSSIBLE, cell_state=state), now=NOW)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"is_allowed": False}, "pool gpu does not allow exec"),
        ({"state": TaskState.BUILDING}, "the attempt is BUILDING"),
        ({"state": TaskState.SUCCEEDED}, "the attempt is SUCCEEDED"),
        ({"is_stopping": True}, "is being stopped"),
        ({"cell_state": CellState.LOST}, "cell cell-1 does not answer"),
        ({"cell_seen_at": NOW - timedelta(seconds=16)}, "cell cell-1 does not answer"),
        ({"cell_seen_at": None}, "cell cell-1 does not answer"),
        ({"sessions_of_attempt": 4}, "the attempt has 4 exec sessions: the limit is 4"),
        ({"sessions_of_user": 32}, "you have 32 exec sessions: the limit is 32"),
    ],
)
def test_impossible_session_is_refused_with_its_reason(changed: Any, text: str) -> None:
    with pytest.raises(Conflict, match=text):
        check_request(replace(POSSIBLE, **changed), now=NOW)


@pytest.mark.parametrize(
    ("state", "nonce", "seconds", "claim"),
    [
        (ExecState.REQUESTED, "a", 29, ExecClaim.NEW),
        (ExecState.REQUESTED, "a", 30, ExecClaim.REFUSED),
        (ExecState.OPEN, "a", 3600, ExecClaim.CONTINUED),
        (ExecState.OPEN, "b", 1, ExecClaim.REFUSED),
        (ExecState.ENDED, "a", 1, ExecClaim.REFUSED),
    ],
)
def test_one_process_claims_a_session_within_30_seconds(
    state: ExecState, nonce: str, seconds: float, claim: ExecClaim
) -> None:
    at = NOW + timedelta(seconds=seconds)
    assert decide_claim(state, "a", nonce, expires=expires_at(NOW), now=at) is claim


@pytest.mark.parametrize(
    ("role", "is_own", "permitted"),
    [
        (Role.VIEWER, True, False),
        (Role.SUBMITTER, True, True),
        (Role.SUBMITTER, False, False),
        (Role.MANAGER, False, True),
    ],
)
def test_submitters_enter_their_own_work_and_managers_all(
    role: Role, is_own: bool, permitted: bool
) -> None:
    access = Access(1, Role.MANAGER, projects={7: role})
    assert may(access, Permission.EXEC, Place(7, 1, 1 if is_own else 2)) is permitted


def test_operators_enter_all_work_and_auditors_none() -> None:
    place = Place(7, 1, 2)
    assert may(Access(1, Role.OPERATOR, is_operator=True), Permission.EXEC, place)
    assert not may(Access(1, Role.OPERATOR, is_auditor=True), Permission.EXEC, place)
