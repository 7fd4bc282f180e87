"""A failed test shows the output of the processes of its stack."""

from collections.abc import Generator

import pytest

from tests.e2e.stack import OPEN

LINES = 25


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
