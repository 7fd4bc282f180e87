"""`python -m tests.mutants.trial`, in a copy of the tree: runs the pure tests against mutants.

What takes long to import is imported once; each mutant has a fork of that process. A mistake in
the body of a function is grafted (see `grafting`); for any other, an import hook gives the module
the mutated text before a test imports it. Nothing is written. From standard input: how many at
once, and the mutants; to standard output: a line of JSON for each.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import hypothesis
import hypothesis.strategies
import numpy as np  # noqa: F401  for the forks
import pydantic  # noqa: F401  for the forks
import pytest

from tests.mutants.forks import STILLBORN, Work, fork, run_all
from tests.mutants.grafting import Grafting, MutantSource, function_of
from tests.mutants.suite import near_and_far, pure_tests

# An endless loop is a mistake that is found: far above what all tests need.
_CPU_SECONDS = 120


class _Mutated(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Gives one module another source."""

    def __init__(self, module: str, source: str) -> None:
        self.module, self.source = module, source

    def find_spec(
        self, name: str, path: Any, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self) if name == self.module else None

    def get_source(self, fullname: str) -> str:
        return self.source

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.source, f"<mutant of {fullname}>")


def _test(files: Sequence[str], *plugins: object) -> int:
    options = "-x -q --no-header -p no:cacheprovider -c tests/mutants/trial.ini --rootdir ."
    return int(pytest.main([*options.split(), *files], plugins=list(plugins)))


def _import_and_test(tree: Path, mutant: MutantSource, tests: list[str]) -> Work:
    def run() -> int:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        sys.meta_path.insert(0, _Mutated(mutant.module, mutant.source))
        try:
            importlib.import_module(mutant.module)
        except Exception:
            return STILLBORN
        for files in filter(None, near_and_far(tree, tests, mutant.module)):
            if code := _test(files):
                return code
        return 0

    return run


def main() -> int:
    """Try the tests without a mistake, then with each."""
    request = json.load(sys.stdin)
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # pytest's output is not a result
    tree, at_once = Path(), request["at_once"]
    mutants = [
        MutantSource(number, one["path"], one["module"], one["source"])
        for number, one in enumerate(request["mutants"])
    ]
    tests = pure_tests(tree)
    modules = {one.module for one in mutants}
    concerned = {
        path for name in modules for part in near_and_far(tree, tests, name) for path in part
    }
    tests = [path for path in tests if path in concerned]
    inner = [(one, found) for one in mutants if (found := function_of(tree, one)) is not None]
    left = _graft(Grafting(tree, inner, at_once, output), tests)
    if left is None:
        return 1
    grafted = {one.number for one, _ in inner} - left
    rest = [one for one in mutants if one.number not in grafted]
    works = [(one.number, _import_and_test(tree, one, tests)) for one in rest]
    run_all(works, at_once=at_once, cpu_seconds=_CPU_SECONDS, output=output)
    return 0


def _graft(plugin: Grafting, tests: list[str]) -> set[int] | None:
    """Try what can be grafted, in a fork; the numbers of those that could not. None if it fails."""
    reading, writing = os.pipe()

    def run() -> int:
        code = _test(tests, plugin)
        os.write(writing, json.dumps([one.number for one in plugin.left]).encode())
        return code

    pid = fork(run, 36_000)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        left = pipe.read()
    return None if os.waitpid(pid, 0)[1] else set(json.loads(left))


if __name__ == "__main__":
    # The same examples in each run, no search for smaller ones: the first that fails is enough.
    hypothesis.settings.register_profile(
        "mutants",
        max_examples=20,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.settings.load_profile("mutants")
    sys.exit(main())
