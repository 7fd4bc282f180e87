"""Runs mutants on a copy of the tree, and counts."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.mutants.making import Mutant

ROOT = Path(__file__).resolve().parents[2]
_COPIED = ("controlplane", "tests")


class Outcome(StrEnum):
    """What became of a mutant. One that cannot be imported is stillborn, and counts neither way."""

    KILLED = "killed"
    TIMEOUT = "timeout"
    SURVIVED = "survived"
    STILLBORN = "stillborn"


@dataclass(frozen=True, slots=True)
class Tried:
    """A mutant, and what became of it."""

    mutant: Mutant
    outcome: Outcome
    seconds: float


@dataclass(frozen=True, slots=True)
class Score:
    """How many of the mutants that count were found."""

    killed: int
    survived: int

    @property
    def percent(self) -> float:
        """Between 0 and 100; 100 of none."""
        total = self.killed + self.survived
        return 100 * self.killed / total if total else 100.0


def score_of(tried: Sequence[Tried]) -> Score:
    """The score of these; a mutant that never ends is found."""
    outcomes = [one.outcome for one in tried]
    killed = outcomes.count(Outcome.KILLED) + outcomes.count(Outcome.TIMEOUT)
    return Score(killed, outcomes.count(Outcome.SURVIVED))


@contextmanager
def copied_tree() -> Iterator[Path]:
    """A copy of what the pure tests need: the tree may change while the mutants run."""
    with tempfile.TemporaryDirectory(prefix="cellrun-mutants-") as folder:
        for name in _COPIED:
            leave_out = shutil.ignore_patterns("__pycache__", "static", "migrations")
            shutil.copytree(ROOT / name, Path(folder) / name, ignore=leave_out)
        yield Path(folder)


def try_mutants(
    tree: Path,
    mutants: Sequence[Mutant],
    *,
    at_once: int | None = None,
    on_result: Callable[[Tried], object] = lambda tried: None,
) -> list[Tried]:
    """Each mutant with what the tests in `tree` make of it. Raises RuntimeError."""
    request = {
        "at_once": at_once or os.cpu_count() or 1,
        "mutants": [
            {"path": one.path, "module": one.module, "source": one.source} for one in mutants
        ],
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.mutants.trial"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    tried: dict[int, Tried] = {}
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        json.dump(request, process.stdin)
        process.stdin.close()
        for line in process.stdout:
            result = json.loads(line)
            number = result["number"]
            tried[number] = Tried(mutants[number], Outcome(result["outcome"]), result["seconds"])
            on_result(tried[number])
    if process.returncode or len(tried) != len(mutants):
        raise RuntimeError("the trial failed; its output is above")
    return [tried[number] for number in range(len(mutants))]
