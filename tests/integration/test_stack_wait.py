"""`make wait` fails without a stack; the environment file for shells can be read."""

from pathlib import Path

import pytest

from controlplane.config.stack import wait
from controlplane.config.stack.failure import StackError
from controlplane.config.stack.parts.home import StackHome, read_shell_lines, shell_lines


def test_wait_without_a_starting_stack_fails_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLRUN_HOME", str(tmp_path / "home"))
    with pytest.raises(StackError, match="no stack is being started in"):
        wait.run(patience=0.2)


def test_wait_names_why_the_start_failed_and_where_the_logs_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = StackHome(tmp_path / "home")
    home.create()
    monkeypatch.setenv("CELLRUN_HOME", str(home.root))

    def fail(_: float) -> None:
        home.failure_file.write_text("cell-1 refuses to start\n")

    # It fails while `make wait` waits, which is reported at once.
    monkeypatch.setattr(wait.time, "sleep", fail)
    with pytest.raises(StackError) as failed:
        wait.run(patience=600)
    assert f"did not start: cell-1 refuses to start\nLogs of all processes: {home.logs}" in str(
        failed.value
    )
    # An earlier failure does not end the wait for a stack that is about to start.
    monkeypatch.undo()
    monkeypatch.setenv("CELLRUN_HOME", str(home.root))
    with pytest.raises(StackError) as absent:
        wait.run(patience=0.2)
    assert "run `make up`. The last start failed: cell-1 refuses to start" in str(absent.value)


def test_shell_lines_round_trip_unchanged() -> None:
    values = {"CELLRUN_TOKEN": "it's a=b $HOME", "CELLRUN_URL": "http://127.0.0.1:8000"}
    assert read_shell_lines(shell_lines(values)) == values
