"""The system's Chromium, for pages of any server."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DESKTOP = {"width": 1360, "height": 900}
PHONE = {"width": 390, "height": 844}
NETWORK_CHANGED = "net::ERR_NETWORK_CHANGED"
"""Chromium cancels requests when the machine gets a network, as for a container of another test."""

expect.set_options(timeout=20_000)  # beside other tests, a page can take more than the usual 5 s


@contextmanager
def started_browser() -> Iterator[Browser]:
    """Yield the system's browser, without pages."""
    executable = next(filter(None, map(shutil.which, _BROWSERS)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


def new_page(
    browser: Browser, url: str, *, viewport: dict[str, int] = DESKTOP, **options: Any
) -> tuple[Page, list[str]]:
    """Open a page with cookies of its own; return it with the list of what its console prints."""
    complaints: list[str] = []
    context = browser.new_context(viewport=viewport, base_url=url, **options)  # type: ignore[arg-type]
    page = context.new_page()

    def note(text: str) -> None:
        if NETWORK_CHANGED not in text:
            complaints.append(text)

    page.on("console", lambda line: note(line.text))
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
