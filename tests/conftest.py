"""What every suite shares: which tests are skipped, and why; no test waits for ever."""

import os

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs an engine only where the caller says that there is none."""
    without_engine = pytest.mark.skip(reason="ENGINE=none")
    for item in items:
        if item.get_closest_marker("engine") and os.environ.get("ENGINE") == "none":
            item.add_marker(without_engine)
