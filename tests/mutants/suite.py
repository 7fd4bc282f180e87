"""Which tests are pure, and which of them a mistake in a module can concern."""

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

PURE = ("controlplane.contract", "controlplane.domain", "controlplane.spec")
_NEVER = ("django", "workers", "cellrun")
_TESTS = ("tests.unit.domain", "tests.properties", "tests.harness.domain")
_SUITES = ("tests/unit", "tests/properties")


@cache
def imports_of(path: Path) -> frozenset[str]:
    """All dotted names that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def pure_tests(tree: Path) -> list[str]:
    """The test files below `tree` that are about the domain and need nothing but pure packages."""
    found = []
    for suite in _SUITES:
        for path in sorted((tree / suite).rglob("test_*.py")):
            names = imports_of(path)
            ours = {name for name in names if name.split(".")[0] in ("controlplane", "tests")}
            is_pure = all(name.startswith((*PURE, *_TESTS)) for name in ours)
            is_pure = is_pure and not any(name.split(".")[0] in _NEVER for name in names)
            if is_pure and any(name.startswith("controlplane.domain") for name in ours):
                found.append(str(path.relative_to(tree)))
    return found


def near_and_far(tree: Path, tests: list[str], module: str) -> tuple[list[str], list[str]]:
    """The tests that name `module`, and those that reach it through others."""
    near = [path for path in tests if _names(imports_of(tree / path), module)]
    reach = _reach(tree)
    far = [
        path
        for path in tests
        if path not in near
        and any(module in reach[other] for other in reach if _names(imports_of(tree / path), other))
    ]
    return near, far


def _names(imported: frozenset[str], module: str) -> bool:
    return any(name == module or name.startswith(f"{module}.") for name in imported)


@cache
def _reach(tree: Path) -> Mapping[str, set[str]]:
    """What each pure module, and each module that tests share, imports, directly or not."""
    files = {
        ".".join(path.relative_to(tree).with_suffix("").parts).removesuffix(".__init__"): path
        for folder in (*PURE, *_TESTS)
        for path in (tree / folder.replace(".", "/")).rglob("*.py")
    }
    direct = {
        name: {other for other in files if _names(imports_of(path), other)}
        for name, path in files.items()
    }
    reach: dict[str, set[str]] = {}
    for name in files:
        found: set[str] = set()
        waiting = [name]
        while waiting:
            for other in direct[waiting.pop()] - found:
                found.add(other)
                waiting.append(other)
        reach[name] = found | {name}
    return reach
