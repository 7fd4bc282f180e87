"""Benchmarks run one after the other, whatever becomes of each."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import containers
from benchmarks.description import Description, Options, Size, at_most
from benchmarks.registry import Benchmark
from benchmarks.report import Result

Run = Callable[[Options], Result]


def describe(key: str, run: Run, budget_seconds: int = 60) -> Benchmark:
    target = at_most(5, "time", lambda it: it["ms"], "ms")
    about = Description(key, "title", "claim", "work", "peer", "method", budget_seconds, (target,))
    return Benchmark(about, run)


def install(monkeypatch: pytest.MonkeyPatch, *found: Benchmark, words: list[str]) -> None:
    monkeypatch.setattr(benchmarks, "ALL", {one.about.id: one for one in found})
    monkeypatch.setattr(sys, "argv", ["benchmarks", *words])


def fail(options: Options) -> Result:
    raise RuntimeError("no such [peer]\nand more")


def succeed(options: Options) -> Result:
    return Result("B8", "processes", ("", "ms"), rows=[("ours", "7")], figures={"ms": 7})


def wait(options: Options) -> Result:
    time.sleep(30)
    return succeed(options)


def test_failing_benchmark_is_reported_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--results", str(tmp_path)]
    install(monkeypatch, describe("B1", fail), describe("B8", succeed), words=words)
    assert benchmarks.main() == 1
    output = capsys.readouterr()
    assert "failed: B1" in output.err
    summary = [line for line in output.out.partition("Summary")[2].splitlines() if "B1" in line]
    assert len(summary) == 1
    assert "FAILED" in summary[0]
    assert "no such [peer]" in summary[0]
    assert [path.name for path in tmp_path.iterdir()] == ["B8.json"]
    install(
        monkeypatch, describe("B1", fail), describe("B8", succeed), words=[*words, "--only", "B8"]
    )
    assert benchmarks.main() == 0


def test_benchmark_prints_its_target_and_the_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    install(monkeypatch, describe("B8", succeed), words=["--results", str(tmp_path)])
    assert benchmarks.main() == 0
    output = capsys.readouterr().out
    assert "Target: time at most 5 ms: 7 ms, not met." in output


def test_benchmark_over_its_budget_is_stopped_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--results", str(tmp_path), "--budget", "1"]
    install(monkeypatch, describe("B1", wait), describe("B8", succeed), words=words)
    assert benchmarks.main() == 1
    output = capsys.readouterr()
    assert "took longer than its budget of 1 s" in output.out
    assert "failed: B1\n" in output.err
    assert (tmp_path / "B8.json").exists()


def test_unused_budget_is_added_to_that_of_the_next_benchmark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limits: list[float] = []
    limit = benchmarks._limit
    monkeypatch.setattr(benchmarks, "_limit", lambda s: limits.append(s) or limit(s))
    words = ["--results", str(tmp_path)]
    parts = (describe("B1", fail, 40), describe("B8", succeed, 50))
    install(monkeypatch, *parts, words=words)
    assert benchmarks.main() == 1
    assert limits[0] == 40
    assert 50 < limits[1] <= 90
    install(monkeypatch, *parts, words=[*words, "--size", "full"])
    assert benchmarks.main() == 1
    assert limits[2:] == [0, 0]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], Options(1, Size.SHORT)),
        (["--size", "full"], Options(3, Size.FULL)),
        (["--size", "tiny", "--runs", "2"], Options(2, Size.TINY)),
    ],
)
def test_size_and_runs_reach_the_benchmark_and_the_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], expected: Options
) -> None:
    seen: list[Options] = []

    def run(options: Options) -> Result:
        seen.append(options)
        return succeed(options)

    install(monkeypatch, describe("B8", run), words=["--results", str(tmp_path), *words])
    assert benchmarks.main() == 0
    assert seen == [expected]
    assert json.loads((tmp_path / "B8.json").read_text())["size"] == expected.size


def test_benchmark_without_an_engine_is_skipped_if_none_is_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--results", str(tmp_path)]
    install(monkeypatch, describe("B7", containers.run), describe("B8", succeed), words=words)
    monkeypatch.setenv("ENGINE", "none")
    assert benchmarks.main() == 0
    assert "SKIPPED" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["B8.json"]


def test_unwritable_result_is_reported_and_the_other_benchmarks_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    install(
        monkeypatch,
        describe("B1", succeed),
        describe("B8", succeed),
        words=["--results", str(file / "folder")],
    )
    assert benchmarks.main() == 1
    assert "failed: B1, B8" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--only", "B99"], ["--runs", "0"], ["--budget", "-1"]])
def test_wrong_option_is_refused(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    install(monkeypatch, describe("B8", succeed), words=words)
    with pytest.raises(SystemExit):
        benchmarks.main()
