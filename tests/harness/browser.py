"""A page of a real browser at a server of the test's own process, with a user logged in or not."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from playwright.sync_api import Page

from tests.harness.chromium import DESKTOP, new_page, started_browser


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
    """Yield a page of a browser, and the list of what its console prints.

    The server at `url` runs in the process of the test and shares its database.
    """
    # Playwright runs an event loop in the thread of the test, which reads and writes rows as well.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    with started_browser() as browser:
        page, complaints = new_page(browser, url, viewport=viewport, **options)
        yield page, complaints
        page.wait_for_load_state("networkidle")  # a request in progress keeps the database in use
        page.context.close()
        connection.close()  # the event loop has a connection of its own
    _wait_for_sessions()
    del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


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
