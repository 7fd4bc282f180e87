"""The project's own Python files, parsed once for all tests of this folder."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "controlplane",
    "workers",
    "cellrun",
    "slurm",
    "benchmarks",
    "examples",
    "deploy",
    "docgen",
    "tests",
)


@dataclass(frozen=True, slots=True)
class Source:
    """One file: its path below the project's root, its text and its syntax tree."""

    path: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        """How long it is."""
        return self.text.count("\n")

    @property
    def is_test(self) -> bool:
        """Whether it belongs to the tests."""
        return self.path.startswith("tests/")

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Every function and method, the inner ones too."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node


@cache
def sources() -> tuple[Source, ...]:
    """Every Python file of ours, but the migrations that Django writes."""
    found = [ROOT / "manage.py"]
    for package in PACKAGES:
        found += sorted((ROOT / package).rglob("*.py"))
    return tuple(
        Source(str(path.relative_to(ROOT)), text := path.read_text(), ast.parse(text))
        for path in found
        if "migrations" not in path.parts
    )
