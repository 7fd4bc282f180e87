"""Standard input counts as sent only if a living engine confirms the end of the connection."""

import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workers.attempt.runtime import ContainerStatus, EngineAway
from workers.attempt.transfer.standard_input import SENT, _feed

CONTENT = b"x" * 90_000


def running() -> Any:
    return SimpleNamespace(status=ContainerStatus.RUNNING)


def gone() -> Any:
    raise EngineAway("connection refused")


@pytest.mark.parametrize(("view", "is_sent"), [(running, True), (gone, False)])
def test_end_of_the_connection_after_all_was_read(
    tmp_path: Path, view: Callable[[], Any], is_sent: bool
) -> None:
    source, signals = tmp_path / "source", list[str]()
    source.write_bytes(CONTENT)

    def signal(_: str, name: str) -> bool:
        signals.append(name)
        return True

    attempt: Any = SimpleNamespace(
        uid="u",
        workspace=tmp_path,
        ended=False,
        context=SimpleNamespace(closed=threading.Event()),
        engine=SimpleNamespace(view=lambda _: view(), signal=signal),
    )
    ours, theirs = socket.socketpair()
    ours.settimeout(5)

    def read_all() -> None:
        with theirs:
            while theirs.recv(65_536):
                pass

    engine = threading.Thread(target=read_all)
    engine.start()
    with ExitStack() as ends:
        ends.enter_context(ours)
        _feed(attempt, source, ours, ends.pop_all())
    engine.join()
    state = tmp_path / "stdin"
    assert (state.exists() and state.read_text() == SENT, signals) == (
        is_sent,
        [] if is_sent else ["KILL"],
    )
