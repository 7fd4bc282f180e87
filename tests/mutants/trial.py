"""`python -m tests.mutants.trial`, in a copy of the tree: runs the pure tests against mutants.

What takes long to import is imported once; each mutant has a fork of that process, in which an
import hook gives its module the mutated text. Nothing is written. From standard input: how many
at once, and the mutants; to standard output: a line of JSON for each.
"""

import ast
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import hypothesis
import hypothesis.strategies
import numpy as np  # noqa: F401  for the forks
import pydantic  # noqa: F401  for the forks
import pytest

PURE = ("controlplane.contract", "controlplane.domain", "controlplane.spec")
_IMPURE = ("django", "workers", "client")
_SUITES = ("tests/unit", "tests/properties")
_STILLBORN = 77
# An endless loop is a mistake that is found; the limits are far above what the tests need, in
# seconds of the processor, so that a busy machine finds nothing, and in bytes.
_CPU_FACTOR, _CPU_LEAST_SECONDS = 10, 10
_MEMORY = 3 << 30


def pure_tests(tree: Path) -> dict[str, set[str]]:
    """The test files that need nothing but the pure packages, with what they import."""
    found = {}
    for suite in _SUITES:
        for path in sorted((tree / suite).rglob("test_*.py")):
            names = _imported(path)
            ours = {name for name in names if name.split(".")[0] in ("controlplane", "tests")}
            needed = {
                name for name in names if name.split(".")[0] in ("django", "workers", "client")
            }
            impure = {
                name
                for name in ours
                if not name.startswith((*PURE, "tests.unit.domain", "tests.properties"))
            }
            decides = any(name.startswith("controlplane.domain") for name in ours)
            if decides and not needed and not impure:
                found[str(path.relative_to(tree))] = ours
    return found


def _imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


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


def _test(files: Sequence[str], *, quiet: bool) -> int:
    options = "-x -q --no-header -p no:cacheprovider -c tests/mutants/trial.ini --rootdir ."
    with Path(os.devnull).open("w") as nothing:
        told = nothing if quiet else sys.stderr
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            return pytest.main([*options.split(), *files])


def _try(mutant: dict[str, Any], files: Sequence[str], cpu_seconds: int) -> int:
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 5))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    if mutant["source"] is not None:
        sys.meta_path.insert(0, _Mutated(mutant["module"], mutant["source"]))
        try:
            importlib.import_module(mutant["module"])
        except Exception:
            return _STILLBORN
    return int(_test(files, quiet=mutant["source"] is not None))


def _fork(mutant: dict[str, Any], files: Sequence[str], cpu_seconds: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = _try(mutant, files, cpu_seconds)
    except BaseException:
        code = 1
    finally:
        os._exit(code)


def _outcome(status: int) -> str:
    if os.WIFSIGNALED(status):
        return "timeout" if os.WTERMSIG(status) == signal.SIGXCPU else "killed"
    code = os.WEXITSTATUS(status)
    return {0: "survived", _STILLBORN: "stillborn"}.get(code, "killed")


def _in_order(tests: dict[str, set[str]], module: str) -> list[str]:
    """All files, those first that name the module: they are likeliest to find its mistakes."""
    return sorted(tests, key=lambda path: not any(n.startswith(module) for n in tests[path]))


def main() -> int:
    """Try the tests without a mistake, then with each."""
    asked = json.load(sys.stdin)
    tests = pure_tests(Path())
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(2):  # the second has its assertions rewritten already
        _, status = os.waitpid(_fork({"source": None}, list(tests), 600), 0)
        if status:
            print(json.dumps({"baseline": "the tests fail without any mutant"}), flush=True)
            return 1
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 2
    print(json.dumps({"baseline": cpu, "tests": list(tests)}), flush=True)
    limit = int(max(cpu * _CPU_FACTOR, _CPU_LEAST_SECONDS))
    running: dict[int, tuple[int, float]] = {}
    waiting = list(enumerate(asked["mutants"]))[::-1]
    while waiting or running:
        while waiting and len(running) < asked["at_once"]:
            number, mutant = waiting.pop()
            pid = _fork(mutant, _in_order(tests, mutant["module"]), limit)
            running[pid] = (number, time.monotonic())
        pid, status = os.wait()
        number, began = running.pop(pid)
        took = time.monotonic() - began
        told = {"number": number, "outcome": _outcome(status), "seconds": took}
        print(json.dumps(told), flush=True)
    return 0


if __name__ == "__main__":
    # The same examples in each run, no search for smaller ones: the first that fails is enough.
    hypothesis.settings.register_profile(
        "mutants",
        max_examples=25,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.settings.load_profile("mutants")
    sys.exit(main())
