"""What every suite shares: which tests run, and which may not share the machine."""

import gc
import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from xdist.remote import Producer

from tests.harness.cheap import make_tests_cheap
from tests.harness.drawn import draw
from tests.harness.engine_hangs import HANGS
from tests.harness.phases import PHASES, StackScheduling, names_marker

draw()
make_tests_cheap()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import only the files of a phase: the others take half a minute of a processor."""
    marker, is_test = config.option.markexpr, collection_path.match("test_*.py")
    is_other = marker in PHASES and is_test and not names_marker(collection_path, marker)
    return True if is_other else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> object | None:
    """Give files that share a stack to one worker."""
    return StackScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without garbage collection, and exempt modules and tests from all later ones."""
    gc.disable()
    result = yield
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()
    return result


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
    chosen: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        for marker in PHASES:
            if item.get_closest_marker(marker) and not names_marker(item.path, marker):
                raise pytest.UsageError(f"{item.nodeid}: its file does not name mark.{marker}")
        soak = item.get_closest_marker("soak") and not config.getoption("--soak")
        (left_out if soak else chosen).append(item)
        if item.get_closest_marker("engine"):
            if os.environ.get("ENGINE") == "none":
                item.add_marker(without_engine)
            else:
                HANGS.watch(item)
    items[:] = chosen
    if left_out:
        config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note when a test begins, to tell whether the engine was restarted since."""
    HANGS.begin(item.nodeid, time.time())
