"""A page of a real browser, in which a user may be logged in."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from playwright.sync_api import Page, sync_playwright

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DESKTOP = {"width": 1360, "height": 900}
PHONE = {"width": 390, "height": 844}


@contextmanager
def signed_in_page(
    url: str, user: User, *, viewport: dict[str, int] = DESKTOP, **options: Any
) -> Iterator[tuple[Page, list[str]]]:
    """Yield a page of the user's browser, and the list of what its console prints."""
    login = Client()
    login.force_login(user)
    name = settings.SESSION_COOKIE_NAME
    with opened_page(url, viewport=viewport, **options) as (page, complaints):
        page.context.add_cookies([{"name": name, "value": login.cookies[name].value, "url": url}])
        yield page, complaints


@contextmanager
def opened_page(
    url: str, *, viewport: dict[str, int] = DESKTOP, **options: Any
) -> Iterator[tuple[Page, list[str]]]:
    """Yield a page of a browser on the server of the test, and what its console prints."""
    # Playwright runs an event loop in the thread of the test, which reads and writes rows as well.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    with foreign_page(url, viewport=viewport, **options) as (page, complaints):
        yield page, complaints
        page.wait_for_load_state("networkidle")  # a request in progress keeps the database in use
        page.context.close()
        connection.close()  # the event loop has a connection of its own
    _wait_for_sessions()
    del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@contextmanager
def foreign_page(
    url: str, *, viewport: dict[str, int] = DESKTOP, **options: Any
) -> Iterator[tuple[Page, list[str]]]:
    """Yield a page of a browser on another server, and the list of what its console prints."""
    executable = next(filter(None, map(shutil.which, _BROWSERS)))
    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        context = browser.new_context(viewport=viewport, base_url=url, **options)  # type: ignore[arg-type]
        page = context.new_page()
        page.on("console", lambda line: complaints.append(line.text))
        page.on("pageerror", lambda error: complaints.append(error.stack or str(error)))
        yield page, complaints
        browser.close()


def _wait_for_sessions() -> None:
    """Wait until the threads of the server have closed their sessions at the database."""
    others = (
        "SELECT pid, state, query, pg_sleep(0.05)::text FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    found = []
    for _ in range(200):
        with connection.cursor() as cursor:
            cursor.execute(others)
            found = cursor.fetchall()
        if not found:
            return
    raise AssertionError(f"sessions of the server remain: {found}")
