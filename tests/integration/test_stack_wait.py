"""`make wait` fails without a stack; the environment file for shells can be read."""

from pathlib import Path

import pytest

from controlplane.config.stack import wait
from controlplane.config.stack.failure import StackError
from controlplane.config.stack.parts.home import read_shell_lines, shell_lines


def test_wait_without_a_starting_stack_fails_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLRUN_HOME", str(tmp_path / "home"))
    with pytest.raises(StackError, match="no stack is being started in"):
        wait.run(patience=0.2)


def test_shell_lines_round_trip_unchanged() -> None:
    values = {"CELLRUN_TOKEN": "it's a=b $HOME", "CELLRUN_URL": "http://127.0.0.1:8000"}
    assert read_shell_lines(shell_lines(values)) == values
