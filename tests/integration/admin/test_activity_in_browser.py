"""The activity page in a real browser: changes appear by themselves, chips and pages lead on."""

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect
from pytest_django.live_server_helper import LiveServer

from controlplane import clock
from controlplane.contract.states import TaskState as S
from controlplane.models import Job, Transition
from tests.harness.browser import signed_in_page
from tests.harness.chromium import DESKTOP, PHONE, scroll_width
from tests.integration.admin.rows import make_installation

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.browser]


def note(reason: str, message: str = "", to_state: S | None = None) -> None:
    job = Job.objects.earliest("pk")
    Transition.objects.create(
        job_id=job.pk, reason=reason, message=message, to_state=to_state, at=clock.now()
    )


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_new_changes_appear_and_the_filter_is_in_the_address(
    live_server: LiveServer, viewport: dict[str, int]
) -> None:
    make_installation()
    operator = User.objects.create_superuser("olga", password="x")
    with signed_in_page(live_server.url, operator, viewport=viewport) as (page, complaints):
        page.goto("/admin/controlplane/cell/")
        page.get_by_role("link", name="cell-ready").click()
        page.get_by_role("link", name="changes on this cell").click()
        expect(page.get_by_role("heading", name="Activity on cell cell-ready")).to_be_visible()
        expect(page.locator("#live tbody tr").nth(1)).to_be_visible()
        page.get_by_role("link", name="All cells").click()
        kinds = page.get_by_role("group", name="Kinds")
        kinds.get_by_role("link", name="held and moved").click()
        page.wait_for_url("**kind=held*")
        note("held", "the budget is spent")
        newest = page.locator("#live tbody tr").first
        expect(newest).to_contain_text("the budget is spent", timeout=30_000)
        note("exit_status", to_state=S.FAILED)
        kinds.get_by_role("link", name="failed", exact=True).click()
        expect(newest).to_contain_text("non-zero exit status")
        assert scroll_width(page) == viewport["width"]
    assert complaints == []
