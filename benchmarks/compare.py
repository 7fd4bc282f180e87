"""`python -m benchmarks.compare BASE [CHANGE] [--only B1,B6]`: reports what a change made slower.

Both commits run on this machine in turns, BASE CHANGE CHANGE BASE, so that a machine that becomes
slower meanwhile slows both. Each round gives one ratio for each figure. The interval of a ratio is
that of the sign test, which assumes no distribution. The exit code is 1 if a figure became worse.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.description import Target
from benchmarks.registry import ALL

ROOT = Path(__file__).parents[1]
CONFIDENCE = 0.95
# The interval of fewer rounds has less confidence, even if all of them agree.
LEAST_ROUNDS = 6
# A difference below it is not reported, however certain.
LEAST_CHANGE = 0.02
# Words in the name of a figure without a target that decide which direction is better; others are
# not compared.
HIGHER_IS_BETTER = ("rate", "per_second", "ratio")
LOWER_IS_BETTER = ("seconds", "cpu", "ms", "milliseconds", "statements", "percent", "mib")
# The load of the machine, and what describes a run.
_IGNORED = ("cores_used_by_others", "tasks", "cells")

Figures = dict[str, float]
NO_DIRECTIONS: Mapping[str, bool] = MappingProxyType({})
_TARGET = "target: {}"


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval of a ratio and the probability that it covers the true median."""

    low: float
    middle: float
    high: float
    confidence: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of both commits. `ratio`: CHANGE / BASE."""

    name: str
    base: float
    change: float
    ratio: Interval
    is_higher_better: bool

    @property
    def verdict(self) -> str:
        """`slower` or `faster` if the interval excludes 1, else `no difference shown`."""
        if abs(self.ratio.middle - 1) < LEAST_CHANGE:
            return "no difference shown"
        if self.ratio.low > 1:
            return "faster" if self.is_higher_better else "slower"
        if self.ratio.high < 1:
            return "slower" if self.is_higher_better else "faster"
        return "no difference shown"


def flatten(figures: Any, name: str = "") -> Figures:
    """Return the numbers of a result by path; a list gives the median of its items' numbers."""
    if isinstance(figures, Mapping):
        found: Figures = {}
        for key, value in figures.items():
            if key not in _IGNORED:
                found |= flatten(value, f"{name}.{key}" if name else str(key))
        return found
    if isinstance(figures, list):
        items = [flatten(item, name) for item in figures]
        paths = {path for item in items for path in item}
        return {
            path: statistics.median(item[path] for item in items if path in item) for path in paths
        }
    is_number = isinstance(figures, int | float) and not isinstance(figures, bool)
    return {name: float(figures)} if is_number else {}


def is_higher_better(name: str) -> bool | None:
    """Return the better direction of a figure; None if its name has no word for it."""
    for part in reversed(name.split(".")):
        words = part.split("_")
        if any(word in part if "_" in word else word in words for word in HIGHER_IS_BETTER):
            return True
        if any(word in words for word in LOWER_IS_BETTER):
            return False
    return None


def measure_targets(targets: Iterable[Target], figures: Mapping[str, Any]) -> Figures:
    """Return the figures of a result that have a target, by its name."""
    measured = {_TARGET.format(target.name): target.measure(figures) for target in targets}
    return {name: value for name, value in measured.items() if value is not None}


def find_directions(targets: Iterable[Target]) -> dict[str, bool]:
    """Return for each figure with a target whether a higher one is better."""
    return {_TARGET.format(target.name): target.is_least for target in targets}


def find_interval(ratios: Sequence[float]) -> Interval:
    """Return the interval of the sign test: the narrowest that reaches CONFIDENCE, if any does."""
    ordered, count = sorted(ratios), len(ratios)
    outside, rank = 2 / 2**count, 0
    while outside + 2 * math.comb(count, rank + 1) / 2**count <= 1 - CONFIDENCE:
        rank += 1
        outside += 2 * math.comb(count, rank) / 2**count
    low, high = ordered[rank], ordered[count - 1 - rank]
    return Interval(low, statistics.median(ordered), high, 1 - outside)


def compare(
    pairs: Sequence[tuple[Figures, Figures]], directions: Mapping[str, bool] = NO_DIRECTIONS
) -> list[Comparison]:
    """Compare the figures that all rounds of both commits have, the worst first.

    `directions`: whether a higher one is better, for figures whose names need not show it.
    """
    common = set.intersection(*(set(figures) for pair in pairs for figures in pair))
    found = []
    for name in sorted(common):
        better = directions.get(name, is_higher_better(name))
        values = [(base[name], change[name]) for base, change in pairs]
        if better is None or any(min(pair) <= 0 for pair in values):
            continue
        ratio = find_interval([change / base for base, change in values])
        bases, changes = zip(*values, strict=True)
        base, change = statistics.median(bases), statistics.median(changes)
        found.append(Comparison(name, base, change, ratio, better))
    return sorted(found, key=lambda it: it.ratio.middle ** (1 if it.is_higher_better else -1))


def main() -> int:
    """Run the rounds and print one table for each benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("base", help="the commit before the change")
    parser.add_argument("change", nargs="?", default="HEAD", help="the commit after it (HEAD)")
    parser.add_argument("--only", default="B1", help="benchmarks, separated by commas (B1)")
    parser.add_argument("--rounds", type=int, default=LEAST_ROUNDS, help="of each commit (6)")
    chosen = parser.parse_args()
    if chosen.rounds < LEAST_ROUNDS:
        parser.error(f"--rounds is at least {LEAST_ROUNDS}: fewer cannot reach 95 % confidence")
    names = [name.strip().upper() for name in chosen.only.split(",") if name.strip()]
    if unknown := [name for name in names if name not in ALL]:
        parser.error(f"there is no benchmark {', '.join(unknown)}")
    slower = 0
    with _checkout(chosen.base) as base, _checkout(chosen.change) as change:
        for name in names:
            pairs = [_run_pair(name, base, change, n) for n in range(chosen.rounds)]
            found = compare(pairs, find_directions(ALL[name].about.targets))
            _show(name, found, chosen)
            slower += any(it.verdict == "slower" for it in found)
    return 1 if slower else 0


def _run_pair(name: str, base: Path, change: Path, number: int) -> tuple[Figures, Figures]:
    folders = (base, change) if number % 2 == 0 else (change, base)
    found = {folder: _run(name, folder) for folder in folders}
    print(f"{name}: round {number + 1} of both commits is done", file=sys.stderr, flush=True)
    return found[base], found[change]


def _run(name: str, folder: Path) -> Figures:
    command = [sys.executable, "-m", "benchmarks", "--only", name, "--runs", "1"]
    if (folder / "benchmarks" / "description.py").exists():  # older commits have no budgets
        command += ["--budget", "0"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{name} failed at {_describe(folder)}:\n{done.stderr[-4000:]}")
    document = json.loads((folder / "benchmarks" / "results" / f"{name}.json").read_text())
    figures = document["figures"]
    return flatten(figures) | measure_targets(ALL[name].about.targets, figures)


def _show(name: str, found: Sequence[Comparison], chosen: argparse.Namespace) -> None:
    table = Table(title=f"{name}: {chosen.base} -> {chosen.change}", title_justify="left")
    for number, column in enumerate(("figure", "base", "change", "ratio", "interval", "")):
        table.add_column(column, justify="left" if number in (0, 5) else "right")
    for it in found:
        interval = f"{it.ratio.low:.3f} to {it.ratio.high:.3f}"
        figures = (f"{it.base:,.4g}", f"{it.change:,.4g}", f"{it.ratio.middle:.3f}")
        table.add_row(it.name, *figures, interval, it.verdict)
    console = Console(width=None if os.isatty(1) else 140)
    if not found:
        console.print(f"{name}: both commits have no figure in common that can be compared.")
    else:
        console.print(table)
        console.print(
            f"{chosen.rounds} rounds; intervals of {100 * found[0].ratio.confidence:.1f} %;"
            f" differences below {100 * LEAST_CHANGE:.0f} % are not reported.",
            highlight=False,
        )


@contextmanager
def _checkout(revision: str) -> Iterator[Path]:
    """Check the commit out into a folder of its own, which uses this environment."""
    with tempfile.TemporaryDirectory(prefix="cellrun-compare-") as parent:
        folder = Path(parent) / "tree"
        _git("worktree", "add", "--quiet", "--detach", str(folder), revision)
        try:
            yield folder
        finally:
            _git("worktree", "remove", "--force", str(folder))


def _describe(folder: Path) -> str:
    command = ["git", "describe", "--always", "--abbrev=10"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout.strip()


def _git(*words: str) -> None:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr.strip())


if __name__ == "__main__":
    sys.exit(main())
