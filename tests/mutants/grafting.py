"""The quick way to try a mistake in the body of a function: graft it onto what is imported.

The tests are collected once. Each mutant has a fork in which its function is given the mutated
code, and in which those tests run that were seen to call that function, the fastest first.
"""

import ast
import importlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, TextIO

import pytest
from _pytest.runner import runtestprotocol

from tests.mutants.forks import Work, fork, run_all

Place = tuple[str, int]
"""A file below the tree, and the line where a function in it begins."""


@dataclass(frozen=True, slots=True)
class MutantSource:
    """A mutant as requested: the path and name of its module, and its mutated text."""

    number: int
    path: str
    module: str
    source: str


@dataclass(frozen=True, slots=True)
class Function:
    """The function that a mutant changes: its name in the module, and its first and last line."""

    name: str
    first: int
    last: int


def function_of(tree: Path, mutant: MutantSource) -> Function | None:
    """The function in whose body alone the mutant differs; None if it differs elsewhere."""
    old, functions = _read(tree / mutant.path)
    new = mutant.source.splitlines()
    first = next((n for n, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), 0)
    rest = zip(reversed(old), reversed(new), strict=False)
    last = len(old) - next((n for n, pair in enumerate(rest) if pair[0] != pair[1]), 0)
    for name, node in functions:
        begins = node.body[0].lineno
        is_apart = begins > max([node.lineno, *(one.lineno for one in _signature(node))])
        if is_apart and begins <= first + 1 and last <= (node.end_lineno or 0):
            decorated = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            return Function(name, decorated, node.end_lineno or decorated)
    return None


@cache
def _read(path: Path) -> tuple[list[str], list[tuple[str, ast.FunctionDef]]]:
    """The lines of a module, and its functions and methods by their names in it."""
    text = path.read_text()
    found = []
    for node in ast.parse(text).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        found += [(prefix + one.name, one) for one in inner if isinstance(one, ast.FunctionDef)]
    return text.splitlines(), found


def _signature(node: ast.FunctionDef) -> list[ast.expr]:
    """What of a function is evaluated when it is defined."""
    defaults = [one for one in (*node.args.defaults, *node.args.kw_defaults) if one is not None]
    return [*defaults, *filter(None, [node.returns])]


def graft(mutant: MutantSource, function: Function) -> None:
    """Give the function of the imported module the mutated code."""
    found: Any = importlib.import_module(mutant.module)
    for part in function.name.split("."):
        found = vars(found)[part]
    while not isinstance(found, FunctionType):
        names = ("fget", "func", "__wrapped__", "__func__")
        found = next(getattr(found, name) for name in names if hasattr(found, name))
    code = compile(mutant.source, mutant.path, "exec")
    found.__code__ = next(one for one in _codes(code) if one.co_qualname == function.name)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


class Watch:
    """Notes which functions below a folder are called."""

    def __init__(self, tree: Path) -> None:
        self._prefix = f"{tree.resolve()}/"
        self.called: set[Place] = set()

    def __enter__(self) -> "Watch":
        sys.settrace(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename  # called for calls alone: it needs nothing more
        if name.startswith(self._prefix):
            self.called.add((name[len(self._prefix) :], frame.f_code.co_firstlineno))


class Grafting:
    """A plugin: after the collection it tries the mutants instead of running the tests.

    `left`: those that concern what ran during the collection, hence cannot be grafted.
    """

    def __init__(
        self,
        tree: Path,
        mutants: Sequence[tuple[MutantSource, Function]],
        at_once: int,
        output: TextIO,
    ) -> None:
        self.tree, self.mutants, self.at_once, self.output = tree, mutants, at_once, output
        self.left: list[MutantSource] = []
        self.watch = Watch(tree)

    def pytest_collection(self) -> None:
        self.watch.__enter__()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.watch.__exit__()
        if session.testsfailed:
            raise session.Failed("the tests cannot be collected")
        runs = self._runs(session.items)
        if runs is None:
            raise session.Failed("the tests fail without any mutant")
        works: list[tuple[int, Work]] = []
        for mutant, function in self.mutants:
            if _is_called(self.watch.called, mutant, function):
                self.left.append(mutant)
                continue
            fitting = [
                (seconds, index)
                for index, (called, seconds) in enumerate(runs)
                if _is_called(called, mutant, function)
            ]
            items = [session.items[index] for _, index in sorted(fitting)]
            works.append((mutant.number, _work(mutant, function, items)))
        limit = int(10 + 10 * sum(seconds for _, seconds in runs))
        run_all(works, at_once=self.at_once, cpu_seconds=limit, output=self.output)
        return True

    def _runs(self, items: Sequence[pytest.Item]) -> list[tuple[set[Place], float]] | None:
        """What each test calls and how long it takes, found out in a fork; None if one fails."""
        reading, writing = os.pipe()

        def run() -> int:
            with os.fdopen(writing, "w") as output:
                for item in items:
                    began = time.process_time()
                    with Watch(self.tree) as watch:
                        failed = _fails(item)
                    seconds = time.process_time() - began
                    output.write(json.dumps([sorted(watch.called), seconds, failed]) + "\n")
            return 0

        pid = fork(run, 3600)
        os.close(writing)
        with os.fdopen(reading) as lines:
            runs = [json.loads(line) for line in lines]
        os.waitpid(pid, 0)
        failed = [item.nodeid for item, run in zip(items, runs, strict=False) if run[2]]
        if failed or len(runs) != len(items):
            print("\n".join(failed), file=sys.stderr)
            return None
        return [({(path, line) for path, line in run[0]}, run[1]) for run in runs]


def _work(mutant: MutantSource, function: Function, items: Sequence[pytest.Item]) -> Work:
    def run() -> int:
        graft(mutant, function)
        return int(any(map(_fails, items)))

    return run


def _is_called(called: set[Place], mutant: MutantSource, function: Function) -> bool:
    return any(
        path == mutant.path and function.first <= line <= function.last for path, line in called
    )


def _fails(item: pytest.Item) -> bool:
    return any(report.failed for report in runtestprotocol(item, log=False, nextitem=None))
