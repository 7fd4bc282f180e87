"""The page of an attempt with the programs that users ran inside it."""

import pytest
from django.test import Client

from controlplane import clock
from controlplane.contract.states import TaskState
from controlplane.domain.cells.exec_sessions import ExecState
from controlplane.models import Attempt
from tests.integration.admin.test_pages import address_of, page, words
from tests.integration.api.test_walls import make_exec_session

pytestmark = pytest.mark.django_db


def test_attempt_lists_sessions_with_user_command_and_exit_code(operator: Client) -> None:
    attempt = Attempt.objects.filter(state=TaskState.RUNNING)[0]
    assert "Programs that users ran inside" not in page(operator, address_of(Attempt, attempt))
    command = ["sh", "-c", "echo <script>alert(1)</script>"]
    ended = {"state": ExecState.ENDED, "ended_at": clock.now(), "exit_code": 41}
    make_exec_session(attempt, actor="ann", command=command, **ended)
    make_exec_session(attempt, actor="bob", command=["top"])
    raw = operator.get(address_of(Attempt, attempt)).content.decode()
    assert "<script>alert(1)" not in raw
    shown = words(page(operator, address_of(Attempt, attempt)))
    assert "Programs that users ran inside" in shown
    assert shown.index("bob top REQUESTED") < shown.index("ann sh -c 'echo")
    assert " ENDED " in shown
    assert " 41 " in shown
