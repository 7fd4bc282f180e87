"""Two commits are compared in turns on one machine, with the interval of the sign test."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import compare
from benchmarks.compare import (
    ROOT,
    Figures,
    find_directions,
    find_interval,
    flatten,
    is_higher_better,
    measure_targets,
)
from benchmarks.description import at_least, at_most
from benchmarks.registry import ALL

PROGRAM = """
import json, pathlib, sys
assert sys.argv[1:] == ["--only", "B1", "--runs", "1"]
folder = pathlib.Path("benchmarks/results")
folder.mkdir(exist_ok=True)
figures = {"plain": [{"rate": RATE, "cpu_ms": {"postgres": 0.2}}], "note": "text"}
(folder / "B1.json").write_text(json.dumps({"figures": figures}))
"""


@pytest.mark.parametrize(
    ("rounds", "low", "high", "confidence"),
    # From tables of the confidence interval of a median: ranks, counted from 1.
    [
        (6, 1, 6, 0.969),
        (10, 2, 9, 0.979),
        (12, 3, 10, 0.961),
        (15, 4, 12, 0.965),
        (20, 6, 15, 0.959),
    ],
)
def test_interval_has_the_ranks_of_the_sign_test(
    rounds: int, low: int, high: int, confidence: float
) -> None:
    found = find_interval([float(n) for n in range(rounds, 0, -1)])
    assert (found.low, found.high) == (low, high)
    assert found.confidence == pytest.approx(confidence, abs=0.001)


def test_figures_are_flattened_and_lists_give_medians() -> None:
    figures = {
        "plain": [{"rate": 1, "cpu_ms": {"ours": 2}}, {"rate": 3, "cpu_ms": {"ours": 5}}],
        "cores_used_by_others": [0.1],
        "holds": True,
        "title": "text",
    }
    assert flatten(figures) == {"plain.rate": 2, "plain.cpu_ms.ours": 3.5}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain.rate", True),
        ("celery_tasks_per_second", True),
        ("ratio_plain", True),
        ("plain.cpu_ms.ours", False),
        ("seconds", False),
        ("pages./admin/job/1.0/.p95_ms", False),
        ("slowest", None),
    ],
)
def test_direction_of_a_figure_follows_from_its_name(name: str, expected: bool | None) -> None:
    assert is_higher_better(name) is expected


def verdicts(base: list[float], change: list[float], name: str) -> list[str]:
    pairs: list[tuple[Figures, Figures]] = [
        ({name: one}, {name: other}) for one, other in zip(base, change, strict=True)
    ]
    return [it.verdict for it in compare.compare(pairs)]


def test_a_change_is_named_only_if_every_round_shows_it() -> None:
    base = [100.0, 90, 140, 70, 100, 120]
    assert verdicts(base, [value * 0.9 for value in base], "rate") == ["slower"]
    assert verdicts(base, [value * 0.9 for value in base], "seconds") == ["faster"]
    assert verdicts(base, [value * 1.1 for value in base], "seconds") == ["slower"]
    mixed = [
        value * factor for value, factor in zip(base, (0.8, 0.8, 0.8, 0.8, 0.8, 1.1), strict=True)
    ]
    assert verdicts(base, mixed, "rate") == ["no difference shown"]
    assert verdicts(base, [value * 0.99 for value in base], "rate") == ["no difference shown"]


def test_figures_that_one_commit_lacks_are_left_out() -> None:
    pair: tuple[Figures, Figures] = ({"rate": 1, "old_rate": 1}, {"rate": 1, "new_rate": 1})
    assert [it.name for it in compare.compare([pair] * 6)] == ["rate"]


def test_figures_with_a_target_are_compared_in_its_direction() -> None:
    """No word of these names shows a direction."""
    targets = [
        at_most(12, "p50, under load", lambda it: it["under_load"]["p50"]),
        at_least(2, "of the peer", lambda it: it["quick"]),
        at_most(1, "missing", lambda it: it["missing"]),
    ]
    base = measure_targets(targets, {"under_load": {"p50": 10.0}, "quick": 3.0})
    change = measure_targets(targets, {"under_load": {"p50": 20.0}, "quick": 6.0})
    found = compare.compare([(base, change)] * 6, find_directions(targets))
    assert {it.name: it.verdict for it in found} == {
        "target: p50, under load": "slower",
        "target: of the peer": "faster",
    }


@pytest.mark.parametrize("name", list(ALL))
def test_each_benchmark_has_figures_to_compare(name: str) -> None:
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    figures = json.loads(path.read_text())["figures"]
    targets = ALL[name].about.targets
    measured = {**flatten(figures), **measure_targets(targets, figures)}
    assert compare.compare([(measured, measured)] * 6, find_directions(targets))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with commits `fast`, `slow` and `other`, and an uncommitted change."""
    package = tmp_path / "benchmarks"
    package.mkdir()
    git(tmp_path, "init", "--quiet")
    (package / "__init__.py").touch()
    for name, rate in (("fast", 100), ("slow", 50), ("other", 50)):
        program = PROGRAM if name != "other" else PROGRAM.replace("plain", "other")
        (package / "__main__.py").write_text(f"RATE = {rate}\n{program}")
        git(tmp_path, "add", ".")
        git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", name)
        git(tmp_path, "tag", name)
    (package / "__main__.py").write_text("raise SystemExit('not committed')")
    return tmp_path


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def run_main(monkeypatch: pytest.MonkeyPatch, repository: Path, *words: str) -> int:
    monkeypatch.setattr(compare, "ROOT", repository)
    monkeypatch.setattr(sys, "argv", ["compare", *words])
    return compare.main()


def test_command_reports_what_became_slower_and_removes_its_checkouts(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, repository, "fast", "slow") == 1
    output = capsys.readouterr().out
    (line,) = (line for line in output.splitlines() if "plain.rate" in line)
    assert "0.500 to 0.500" in line
    assert "slower" in line
    assert "96.9 %" in output
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert run_main(monkeypatch, repository, "slow", "fast") == 0
    capsys.readouterr()
    assert run_main(monkeypatch, repository, "slow", "other") == 0
    assert "no figure in common" in capsys.readouterr().out


def test_command_refuses_unknown_commits_and_too_few_rounds(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match="no-such-commit"):
        run_main(monkeypatch, repository, "no-such-commit")
    with pytest.raises(SystemExit):
        run_main(monkeypatch, repository, "fast", "slow", "--rounds", "5")
    with pytest.raises(SystemExit):
        run_main(monkeypatch, repository, "fast", "slow", "--only", "B99")
