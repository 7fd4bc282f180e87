"""Requests for exec sessions: what they create, who may, limits, and what they leave behind."""

import shlex
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from controlplane import clock
from controlplane.commands.attempts.exec_sessions import (
    claim_session,
    end_session,
    note_cell,
    note_client,
)
from controlplane.contract.messages.orders import ExecOrder
from controlplane.contract.states import TaskState
from controlplane.domain.cells.exec_sessions import ExecClaim, ExecState
from controlplane.models import Attempt, AuditLine, Cell, CellLease, ExecSession, Pool, Task
from controlplane.queries.attempts.exec_sessions import load_exec_orders
from tests.integration.api.conftest import Caller, check_described
from tests.integration.api.test_reading import pages, place, submit
from tests.integration.api.test_walls import make_exec_session

COMMAND = {"command": ["sh", "-c", "echo 'a b'"], "tty": True, "rows": 24, "columns": 80}


@pytest.fixture
def attempt(submitter: Caller, make_cell: Callable[..., Cell]) -> Attempt:
    """Return a running attempt of a cell that has just sent a heartbeat."""
    cell, now = make_cell(), clock.now()
    Cell.objects.filter(pk=cell.pk).update(incarnation="i", state="READY")
    CellLease.objects.create(cell=cell, incarnation="i", expires_at=now, last_message_at=now)
    return place(Task.objects.get(job_id=submit(submitter)), cell)


def path_of(attempt: Attempt) -> str:
    return f"/attempts/{attempt.pk}/exec"


def test_request_creates_a_session_with_an_audit_line(submitter: Caller, attempt: Attempt) -> None:
    answer = submitter.post(path_of(attempt), COMMAND)
    assert answer.status == 201
    check_described("ExecDocument", answer.json)
    session = answer.json["uid"]
    assert answer.headers["Location"].endswith(f"/api/v1/exec/{session}")
    assert {name: answer.json[name] for name in ("state", "actor", "token", "number")} == {
        "state": "REQUESTED",
        "actor": "ann",
        "token": "test",
        "number": 1,
    }
    assert submitter.get(f"/exec/{session}").json == answer.json
    line = AuditLine.objects.get(action="exec.attempt")
    assert (line.subject, line.text) == (f"attempt {attempt.pk}", "sh -c 'echo '\"'\"'a b'\"'\"''")
    assert (line.actor, line.after["session"]) == ("ann", session)
    assert line.project_id == attempt.job.project_id


LONG_COMMANDS = {
    "plain": lambda size: ["echo", "x" * size],
    "spaces": lambda size: ["sh", "-c", ":" + " " * size + "; rm -rf /data"],
    "quotes": lambda size: ["sh", "-c", "'" * size + "; rm -rf /data"],
    "arguments": lambda size: ["true", *["'" * (size // 254)] * 254, "; rm -rf /data"],
    "of two bytes": lambda size: ["sh", "-c", "é" * size + "; rm -rf /data"],
    "of four bytes": lambda size: ["sh", "-c", "\U0001f600" * size + "; rm -rf /data"],
}


@pytest.mark.parametrize("command_of", LONG_COMMANDS.values(), ids=LONG_COMMANDS)
def test_audit_line_of_the_longest_command_has_it_whole(
    submitter: Caller, attempt: Attempt, command_of: Callable[[int], list[str]]
) -> None:
    def request(size: int) -> int:
        for session in ExecSession.objects.filter(ended_at=None):
            end_session(session=session.pk, now=clock.now(), reason="")
        return submitter.post(path_of(attempt), {"command": command_of(size)}).status

    accepted, refused = 0, 40_000
    assert (request(accepted), request(refused)) == (201, 422)
    while refused - accepted > 1:
        size = (accepted + refused) // 2
        accepted, refused = (size, refused) if request(size) == 201 else (accepted, size)
    assert request(accepted) == 201
    line = AuditLine.objects.filter(action="exec.attempt").latest("id")
    assert shlex.split(line.text) == command_of(accepted)
    assert ExecSession.objects.latest("number").command == command_of(accepted)


def test_sessions_of_an_attempt_are_listed_newest_first(
    submitter: Caller, attempt: Attempt
) -> None:
    for _ in range(3):
        session = submitter.post(path_of(attempt), COMMAND).json["uid"]
    found = pages(submitter, f"{path_of(attempt)}?limit=2")
    assert [[item["number"] for item in page] for page in found] == [[3, 2], [1]]
    end_session(session=UUID(session), now=clock.now(), reason="", exit_code=3)
    shown = submitter.get(f"/attempts/{attempt.pk}").json
    check_described("Attempt", shown)
    newest = shown["exec_sessions"][0]
    assert (newest["uid"], newest["actor"], newest["exit_code"]) == (session, "ann", 3)
    assert newest["command"] == COMMAND["command"]
    assert len(shown["exec_sessions"]) == 3


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "command"),
        ({"command": []}, "command"),
        ({"command": [""]}, "command"),
        ({"command": ["a\x00"]}, "command"),
        ({"command": ["x" * 16_385]}, "command"),
        ({"command": ["x"] * 257}, "command"),
        ({"command": "sh"}, "command"),
        ({"command": ["sh"], "rows": 70_000}, "rows"),
        ({"command": ["sh"], "shell": True}, "shell"),
    ],
)
def test_invalid_request_names_its_field(
    submitter: Caller, attempt: Attempt, body: Any, field: str
) -> None:
    answer = submitter.post(path_of(attempt), body)
    assert answer.status == 422
    assert any(name.startswith(field) for name in answer.faults), answer.faults
    assert not ExecSession.objects.exists()


def test_fifth_session_of_an_attempt_is_refused_until_one_ends(
    submitter: Caller, attempt: Attempt
) -> None:
    sessions = [submitter.post(path_of(attempt), COMMAND).json["uid"] for _ in range(4)]
    refused = submitter.post(path_of(attempt), COMMAND)
    assert (refused.status, "the limit is 4" in refused.json["detail"]) == (409, True)
    assert submitter.send("DELETE", f"/exec/{sessions[0]}").status == 204
    assert submitter.post(path_of(attempt), COMMAND).json["number"] == 5


def test_pool_and_state_and_cell_refuse(submitter: Caller, attempt: Attempt) -> None:
    def refusal() -> str:
        answer = submitter.post(path_of(attempt), COMMAND)
        assert answer.status == 409
        return str(answer.json["detail"])

    Pool.objects.update(exec_allowed=False)
    assert "exec_allowed" in refusal()
    Pool.objects.update(exec_allowed=True)
    CellLease.objects.update(last_message_at=clock.now() - timedelta(minutes=1))
    assert refusal() == "cell cell-1 does not answer"
    CellLease.objects.update(last_message_at=clock.now())
    Attempt.objects.update(state=TaskState.BUILDING)
    assert "BUILDING" in refusal()
    assert not ExecSession.objects.exists()
    assert not AuditLine.objects.filter(action="exec.attempt").exists()


def test_order_is_sent_until_the_session_is_claimed_or_expires(
    submitter: Caller, attempt: Attempt
) -> None:
    session, now = submitter.post(path_of(attempt), COMMAND).json["uid"], clock.now()
    cell = attempt.cell_id
    requested = ExecSession.objects.get().requested_at.timestamp()
    order = ExecOrder(
        str(attempt.pk), session, tuple(COMMAND["command"]), True, False, requested + 30, 24, 80
    )
    assert load_exec_orders([cell], now=now) == {cell: [order]}
    assert load_exec_orders([cell], now=now + timedelta(seconds=31)) == {}
    assert load_exec_orders([cell + 1], now=now) == {}
    assert claim_session(session=UUID(session), nonce="ab" * 16, now=now) is ExecClaim.NEW
    assert load_exec_orders([cell], now=now) == {}


def test_claim_and_end_change_a_session_once(submitter: Caller, attempt: Attempt) -> None:
    session, now = UUID(submitter.post(path_of(attempt), COMMAND).json["uid"]), clock.now()
    claims = [claim_session(session=session, nonce=nonce, now=now) for nonce in "aab"]
    assert claims == [ExecClaim.NEW, ExecClaim.CONTINUED, ExecClaim.REFUSED]
    assert end_session(session=session, now=now, reason="", exit_code=3)
    assert not end_session(session=session, now=now, reason="late", exit_code=4)
    row = ExecSession.objects.get()
    assert (row.state, row.exit_code, row.reason) == (ExecState.ENDED, 3, "")
    later = now + timedelta(seconds=9)
    assert note_client(session=session, now=later) is ExecState.ENDED
    assert note_cell(session=session, now=later) is ExecState.ENDED
    row.refresh_from_db()
    assert later not in (row.client_seen_at, row.cell_seen_at)
    assert claim_session(session=session, nonce="a", now=now) is ExecClaim.REFUSED


def test_sessions_of_a_user_are_counted_in_all_attempts(
    submitter: Caller, attempt: Attempt
) -> None:
    other = place(Task.objects.get(job_id=submit(submitter)), attempt.cell)
    for _ in range(32):
        make_exec_session(other, actor="ann")
    refused = submitter.post(path_of(attempt), COMMAND)
    assert (refused.status, "the limit is 32" in refused.json["detail"]) == (409, True)
    ExecSession.objects.update(actor="bob")
    assert submitter.post(path_of(attempt), COMMAND).status == 201


def test_pool_field_is_read_and_written(operator: Caller) -> None:
    assert operator.get("/pools/default").json["exec_allowed"] is True
    assert operator.put("/pools/default", {"exec_allowed": False}).json["exec_allowed"] is False
