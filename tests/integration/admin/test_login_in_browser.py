"""The pages of the login in a real browser: they work, and violate no policy of content."""

import base64
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect
from pytest_django.live_server_helper import LiveServer

from controlplane.admin.login import form as login
from controlplane.limits.buckets import Buckets
from tests.harness.browser import opened_page
from tests.harness.oidc_provider import CLIENT_ID, CLIENT_SECRET, serve_provider
from tests.integration.admin.test_login import PASSWORD
from tests.integration.admin.test_totp import code_at

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.browser]

SECOND_FACTOR = "/admin/login/second-factor/"


@dataclass
class Visit:
    """A browser, and what its pages complained about."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> None:
        self.page.goto(self.url + path)

    def give_password(self) -> None:
        self.page.get_by_label("Username").fill("user-1")
        self.page.get_by_label("Password").fill(PASSWORD)
        self.page.get_by_role("button", name="Log in").click()

    def give_code(self, code: str, button: str) -> None:
        self.page.get_by_label("Code", exact=True).fill(code)
        self.page.get_by_role("button", name=button).click()

    def picture(self, name: str) -> None:
        """Write a screenshot if SCREENSHOTS names a folder: for a reader, not the test."""
        if folder := os.environ.get("SCREENSHOTS"):
            self.page.screenshot(path=str(Path(folder) / f"{name}.png"))


@pytest.fixture
def visit(live_server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Visit]:
    monkeypatch.setattr(login, "_attempts", Buckets())
    User.objects.create_superuser("user-1", password=PASSWORD)
    with opened_page(live_server.url) as (page, complaints):
        yield Visit(page, live_server.url, complaints)


def change(settings: Any, **values: Any) -> None:
    settings.CELLRUN = settings.CELLRUN.model_copy(update=values)


def test_a_second_factor_is_set_up_and_used(visit: Visit, settings: Any) -> None:
    change(settings, require_totp=True)
    page = visit.page
    visit.open("/admin/controlplane/job/")
    visit.picture("login")
    visit.give_password()
    expect(page.get_by_role("heading", name="Set up a second factor")).to_be_visible()
    assert page.locator(".login-picture svg").bounding_box()["width"] > 150  # type: ignore[index]
    visit.picture("setup")
    page.emulate_media(color_scheme="dark")
    visit.picture("setup-dark")
    page.emulate_media(color_scheme="light")
    page.get_by_text("The app cannot scan it").click()
    text = page.locator(".login-key").inner_text()
    key = base64.b32decode(text.replace(" ", ""))
    visit.give_code("000000", "Set up")
    expect(page.get_by_text("The code is wrong.")).to_be_visible()
    visit.picture("setup-wrong")
    visit.give_code(code_at(datetime.now(UTC), key), "Set up")
    recovery = page.locator(".login-codes").inner_text().split()
    assert len(recovery) == 10
    visit.picture("recovery")
    page.get_by_role("link", name="Continue").click()
    page.wait_for_url(f"{visit.url}/admin/controlplane/job/")
    page.context.clear_cookies()
    visit.complaints.clear()  # those of django-unfold's pages
    visit.open("/admin/controlplane/job/")
    visit.give_password()
    visit.give_code("123456", "Log in")
    expect(page.get_by_text("The code is wrong, or was used before.")).to_be_visible()
    visit.picture("code-wrong")
    visit.give_code(recovery[0], "Log in")
    page.wait_for_url(f"{visit.url}/admin/controlplane/job/")
    page.get_by_text("user-1").last.click()
    visit.picture("menu")
    visit.complaints.clear()
    page.get_by_role("link", name="Second factor").click()
    page.wait_for_url(visit.url + SECOND_FACTOR)
    expect(page.get_by_text("Unused recovery codes: 9.")).to_be_visible()
    visit.picture("replace")
    assert visit.complaints == []


def test_the_pages_before_a_session_cause_no_complaints(visit: Visit, settings: Any) -> None:
    change(settings, require_totp=True)
    visit.open("/admin/")
    visit.give_password()
    visit.page.wait_for_url(f"**{SECOND_FACTOR}")
    assert visit.page.evaluate("getComputedStyle(document.querySelector('h1')).fontSize") == "22px"
    assert [text for text in visit.complaints if "favicon" not in text] == []


def test_a_user_of_a_provider_logs_in(visit: Visit, settings: Any) -> None:
    with serve_provider(f"{visit.url}/admin/login/oidc/callback/") as provider:
        provider.user = {"sub": "s-1", "preferred_username": "user-7", "groups": ["operators"]}
        change(
            settings,
            public_url=visit.url,
            oidc_issuer=provider.issuer,
            oidc_client_id=CLIENT_ID,
            oidc_client_secret=CLIENT_SECRET,
            oidc_operator_groups=("operators",),
        )
        visit.open("/admin/controlplane/job/")
        visit.picture("login-oidc")
        visit.page.get_by_role("link", name="Log in with single sign-on").click()
        visit.page.wait_for_url(f"{visit.url}/admin/controlplane/job/")
        visit.page.context.clear_cookies()
        provider.user = {"sub": "s-2", "preferred_username": "user-8"}
        visit.open("/admin/")
        visit.page.get_by_role("link", name="Log in with single sign-on").click()
        visit.page.wait_for_url(f"{visit.url}/account/")
        expect(visit.page.get_by_role("heading", name="user-8")).to_be_visible()
        visit.picture("login-account")
