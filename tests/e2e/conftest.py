"""A failed test shows the output of the processes of its stack; some files share one stack."""

from collections.abc import Generator
from contextlib import ExitStack

import pytest

from tests.e2e.stack import OPEN, RunningStack, open_folder, remnants

LINES = 25


class SharedStack:
    """A stack with two cells that run processes, for files that leave it as it was.

    These files have the marker `xdist_group("shared stack")`, so one worker runs them in a row.
    """

    def __init__(self) -> None:
        self._ends = ExitStack()
        self._running: RunningStack | None = None

    def start(self) -> RunningStack:
        """Start the stack unless it runs."""
        if self._running is None:
            folder = self._ends.enter_context(open_folder())
            stack = RunningStack(folder / "home", cells=2, engine="process")
            self._running = self._ends.enter_context(stack)
        return self._running

    def stop(self) -> None:
        """Stop the stack and check that no process is left. Repeatable."""
        running, self._running = self._running, None
        self._ends.close()
        assert running is None or remnants(running.home) == []


SHARED = SharedStack()


@pytest.fixture(scope="module")
def shared_stack() -> RunningStack:
    """Return the stack of all tests that request it, which ends with the last in a row."""
    return SHARED.start()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the shared stack unless the next test uses it."""
    if "shared_stack" not in getattr(nextitem, "fixturenames", ()):
        SHARED.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the ends of all logs, before the stack's folder goes."""
    report = yield
    if report.failed:
        for folder in OPEN:
            for path in sorted([*folder.rglob("log"), *folder.rglob("*.log")]):
                if path.is_file():
                    ending = path.read_text(errors="replace").splitlines()[-LINES:]
                    name = f"end of {path.relative_to(folder)}"
                    report.sections.append((name, "\n".join(ending)))
    return report
