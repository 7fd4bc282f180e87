"""The system's Chromium, for pages of any server."""

import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.harness import without_netlink

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DESKTOP = {"width": 1360, "height": 900}
PHONE = {"width": 390, "height": 844}

expect.set_options(timeout=20_000)  # beside other tests, a page can take more than the usual 5 s


@contextmanager
def started_browser() -> Iterator[Browser]:
    """Yield the system's browser, without pages."""
    executable = next(filter(None, map(shutil.which, _BROWSERS)))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        launcher = Path(folder, "chromium")
        command = shlex.join([sys.executable, without_netlink.__file__, executable])
        launcher.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        launcher.chmod(0o755)
        browser = playwright.chromium.launch(executable_path=launcher, args=["--no-sandbox"])
        yield browser
        browser.close()


def new_page(
    browser: Browser, url: str, *, viewport: dict[str, int] = DESKTOP, **options: Any
) -> tuple[Page, list[str]]:
    """Open a page with cookies of its own; return it with the list of what its console prints."""
    complaints: list[str] = []
    context = browser.new_context(viewport=viewport, base_url=url, **options)  # type: ignore[arg-type]
    page = context.new_page()
    page.on("console", lambda line: complaints.append(line.text))
    page.on("pageerror", lambda error: complaints.append(error.stack or str(error)))
    return page, complaints


@contextmanager
def foreign_page(url: str, **options: Any) -> Iterator[tuple[Page, list[str]]]:
    """Yield a page of a browser on a server of other processes, and what its console prints."""
    with started_browser() as browser:
        yield new_page(browser, url, **options)


def scroll_width(page: Page) -> int:
    """Return the width of the loaded page with what is outside of the window."""
    page.wait_for_load_state()
    width: int = page.locator("html").evaluate("html => html.scrollWidth")
    return width
