"""What every suite shares: which tests run, and which may not share the machine."""

import gc
import os
from functools import cache
from pathlib import Path

import pytest

from tests.harness.cheap import make_tests_cheap
from tests.harness.drawn import draw

draw()
make_tests_cheap()
gc.disable()  # until all tests are collected

PHASES = "stack", "serial"
"""Markers of tests that `make` runs alone: each of their files names its marker."""


@cache
def _names(path: Path, marker: str) -> bool:
    return f"mark.{marker}" in path.read_text()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import only the files of a phase: the others take half a minute of a processor."""
    marker, is_test = config.option.markexpr, collection_path.match("test_*.py")
    return True if marker in PHASES and is_test and not _names(collection_path, marker) else None


def pytest_collection_finish() -> None:
    """Exempt modules and tests, which live as long as the process, from garbage collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


def pytest_report_header() -> str:
    """Echo which simulations these are, so that they can be had again."""
    return f"simulation: SIMULATION_BASE={os.environ['SIMULATION_BASE']}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--soak` adds the long suite."""
    parser.addoption("--soak", action="store_true", help="run the long suite too")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the long suite; skip tests that need an engine only with ENGINE=none."""
    without_engine = pytest.mark.skip(reason="ENGINE=none")
    _group_by_file(items)
    chosen: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        soak = item.get_closest_marker("soak") and not config.getoption("--soak")
        (left_out if soak else chosen).append(item)
        if item.get_closest_marker("engine") and os.environ.get("ENGINE") == "none":
            item.add_marker(without_engine)
    items[:] = chosen
    if left_out:
        config.hook.pytest_deselected(items=left_out)


def _group_by_file(items: list[pytest.Item]) -> None:
    """Keep the tests of a phase that are in one file on one worker, unless it names a group."""
    for item in items:
        for marker in PHASES:
            if item.get_closest_marker(marker) and not _names(item.path, marker):
                raise pytest.UsageError(f"{item.nodeid}: its file does not name mark.{marker}")
        if item.get_closest_marker("stack") and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
