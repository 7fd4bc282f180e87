"""Benchmarks run one after the other, whatever becomes of each."""

import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks.report import Result


def test_failing_benchmark_is_reported_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ran: list[str] = []

    def fail(runs: int) -> Result:
        ran.append("B1")
        raise RuntimeError("no such yardstick")

    def succeed(runs: int) -> Result:
        ran.append("B8")
        return Result("B8", "processes", ("", "tasks/s"))

    monkeypatch.setattr(benchmarks, "ALL", {"B1": fail, "B8": succeed})
    monkeypatch.setattr(benchmarks, "show", lambda result: None)
    monkeypatch.setattr(benchmarks, "write", lambda result: tmp_path / "B8.json")
    monkeypatch.setattr(sys, "argv", ["benchmarks"])
    assert benchmarks.main() == 1
    assert ran == ["B1", "B8"]
    output = capsys.readouterr()
    assert "no such yardstick" in output.err
    assert "failed: B1" in output.err
    assert "B8.json" in output.out
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--only", "B8"])
    assert benchmarks.main() == 0


def test_unwritable_result_is_reported_and_the_other_benchmarks_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = Result("B1", "rounds", ("", "ms"))
    written: list[Result] = []

    def write(result: Result) -> Path:
        written.append(result)
        raise OSError("no space left on device")

    monkeypatch.setattr(benchmarks, "ALL", {"B1": lambda runs: result, "B8": lambda runs: result})
    monkeypatch.setattr(benchmarks, "show", lambda result: None)
    monkeypatch.setattr(benchmarks, "write", write)
    monkeypatch.setattr(sys, "argv", ["benchmarks"])
    assert benchmarks.main() == 1
    assert len(written) == 2
    assert "failed: B1, B8" in capsys.readouterr().err
