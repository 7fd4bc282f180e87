"""An operator adds and removes a member of a project in a real browser, under the strict policy."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect
from pytest_django.live_server_helper import LiveServer

from controlplane.models import Membership, Project
from tests.harness.browser import signed_in_page
from tests.harness.chromium import PHONE
from tests.integration.admin.rows import make_installation
from tests.integration.admin.test_pages import address_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.browser]


@dataclass
class Visit:
    """A browser of an operator on the page of a project, and what its pages complained about."""

    page: Page
    project: str
    complaints: list[str] = field(default_factory=list)

    def choose(self, name: str, text: str) -> None:
        """Search a row in a field of the form, and choose it."""
        self.page.locator(f".field-{name} .select2-selection").click()
        self.page.locator(".select2-search__field").fill(text)
        self.page.locator(".select2-results__option", has_text=text).click()

    def follow(self, link: str) -> None:
        self.page.locator("#content-main").get_by_role("link", name=link).click()


@pytest.fixture
def visit(live_server: LiveServer) -> Iterator[Visit]:
    make_installation()
    Membership.objects.all().delete()
    User.objects.create_user("user-1")
    olga = User.objects.create_superuser("olga", password="x")
    address = live_server.url + address_of(Project, Project.objects.get())
    with signed_in_page(live_server.url, olga, viewport=PHONE) as (page, complaints):
        yield Visit(page, address, complaints)


def test_member_is_added_and_removed_on_the_page_of_a_project(visit: Visit) -> None:
    page = visit.page
    page.goto(visit.project)
    visit.follow("Add a member")
    visit.choose("user", "user-1")
    page.locator("select[name=role]").select_option("submitter")
    page.get_by_role("button", name="Save", exact=True).click()
    page.wait_for_url(visit.project)
    member = page.locator("tr", has_text="user user-1")
    expect(member).to_contain_text("submitter")
    visit.follow("Remove")
    page.get_by_role("link", name="No, take me back").click()
    page.goto(visit.project)
    expect(member).to_be_visible()
    visit.follow("Remove")
    page.get_by_role("button", name="Yes, I’m sure").click()
    page.wait_for_url(visit.project)
    expect(member).to_have_count(0)
    expect(page.get_by_text("only operators and auditors can read")).to_be_visible()
    assert [text for text in visit.complaints if "Content Security Policy" in text] == []
