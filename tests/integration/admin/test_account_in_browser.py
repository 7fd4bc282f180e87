"""A user without access to the admin makes and revokes a token on a narrow screen."""

from collections.abc import Iterator

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect
from pytest_django.live_server_helper import LiveServer

from controlplane.admin.login import form as login
from controlplane.domain.roles import Role
from controlplane.limits.buckets import Buckets
from controlplane.models import Domain, Project
from tests.harness.browser import opened_page
from tests.harness.chromium import PHONE, scroll_width
from tests.harness.members import admit
from tests.integration.admin.test_login import PASSWORD
from tests.integration.admin.test_login_in_browser import Visit

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.browser]

WIDTH = PHONE["width"]


@pytest.fixture
def visit(live_server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Visit]:
    monkeypatch.setattr(login, "_attempts", Buckets())
    user = User.objects.create_user("user-1", password=PASSWORD)
    domain = Domain.objects.create(name="research-in-the-natural-sciences")
    for name, role in (("computer-vision", Role.SUBMITTER), ("speech", Role.MANAGER)):
        Project.objects.create(domain=domain, name=name)
        admit(user, role, name, domain=domain.name)
    with opened_page(live_server.url, viewport=PHONE) as (page, complaints):
        page.set_default_timeout(90_000)
        yield Visit(page, live_server.url, complaints)


def check_width(visit: Visit) -> None:
    """Check that the page needs no horizontal scrolling."""
    assert scroll_width(visit.page) <= WIDTH


def status_with(visit: Visit, token: str) -> int:
    """The status of a response of the API to the token."""
    headers = {"Authorization": f"Bearer {token}"}
    return visit.page.context.request.get(f"{visit.url}/api/v1/whoami", headers=headers).status


def test_a_user_makes_a_token_and_revokes_it_on_a_narrow_screen(visit: Visit) -> None:
    page = visit.page
    visit.open("/admin/")
    visit.give_password()
    page.wait_for_url(f"{visit.url}/account/")
    expect(page.get_by_text("You have no API tokens.")).to_be_visible()
    check_width(visit)
    visit.picture("account-empty")
    page.get_by_role("link", name="Create a token").click()
    check_width(visit)
    visit.picture("account-form")
    page.get_by_label("Name").fill("laptop")
    page.get_by_label("Role").select_option("viewer")
    page.get_by_label("Expires in days").fill("30")
    page.get_by_label("research-in-the-natural-sciences/speech").check()
    page.get_by_role("button", name="Create").click()
    page.get_by_role("heading", name="Token laptop").wait_for()
    token = page.locator(".account-token").inner_text()
    check_width(visit)
    visit.picture("account-token")
    assert status_with(visit, token) == 200
    page.get_by_role("link", name="Back to the account").click()
    row = page.locator("tr", has_text="laptop")
    expect(row).to_contain_text("research-in-the-natural-sciences/speech")
    assert token not in page.content()
    check_width(visit)
    visit.picture("account")
    page.emulate_media(color_scheme="dark")
    visit.picture("account-dark")
    page.set_viewport_size({"width": 1360, "height": 850})
    page.emulate_media(color_scheme="light")
    visit.picture("account-wide")
    page.set_viewport_size({"width": WIDTH, "height": 844})
    page.get_by_role("link", name="Revoke laptop").click()
    check_width(visit)
    visit.picture("account-revoke")
    page.get_by_role("button", name="Revoke").click()
    page.get_by_text("The token laptop is revoked.").wait_for()
    visit.picture("account-revoked")
    assert status_with(visit, token) == 401
    page.get_by_role("link", name="Change password").click()
    page.get_by_role("heading", name="Change the password").wait_for()
    check_width(visit)
    visit.picture("account-password")
    page.get_by_role("link", name="Back").click()
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url(f"{visit.url}/admin/login/")
    visit.open("/account/")
    expect(page.get_by_label("Password")).to_be_visible()
    assert [text for text in visit.complaints if "favicon" not in text] == []
