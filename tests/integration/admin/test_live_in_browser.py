"""An open page shows new states without a reload, and keeps what its user does meanwhile."""

from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect
from pytest_django.live_server_helper import LiveServer

from controlplane import clock
from controlplane.admin.live import POLL_SECONDS
from controlplane.contract.states import TaskState
from controlplane.models import Alert, Job, Transition
from tests.harness.browser import signed_in_page
from tests.integration.admin.rows import make_installation
from tests.integration.admin.test_pages import address_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.browser]


@pytest.fixture
def page(live_server: LiveServer) -> Iterator[Page]:
    """Yield a page whose timers run only when a test advances its clock."""
    make_installation()
    Alert.objects.all().delete()
    operator = User.objects.create_superuser("olga", password="x")
    with signed_in_page(live_server.url, operator) as (opened, complaints):
        opened.clock.install(time=clock.now())
        yield opened
    expected = ("ERR_INTERNET_DISCONNECTED", "htmx:afterRequest", "htmx:sendError")
    assert [line for line in complaints if not any(text in line for text in expected)] == []


def wait_for_polls(page: Page, count: int = 2) -> None:
    """Advance the clock of the page by the time of some polls."""
    page.clock.run_for(1000 * POLL_SECONDS * count)
    page.wait_for_load_state("networkidle")


def cancel(job: Job) -> None:
    """End a job as the control plane does."""
    Job.objects.filter(pk=job.pk).update(state=TaskState.KILLED, finished_at=clock.now())
    Transition.objects.create(
        job_id=job.pk,
        from_state=job.state,
        to_state=TaskState.KILLED,
        reason="cancelled",
        at=clock.now(),
    )


def open_job() -> Job:
    return Job.objects.filter(finished_at=None).earliest("pk")


def test_the_page_of_a_job_shows_its_end_without_a_reload(page: Page) -> None:
    job = open_job()
    page.goto(address_of(Job, job))
    page.evaluate("window.isSamePage = true")
    expect(page.locator(".cellrun-state")).not_to_contain_text("killed")
    page.locator("summary", has_text="Submitted document").click()
    cancel(job)
    wait_for_polls(page)
    expect(page.locator(".cellrun-state")).to_contain_text("killed")
    assert page.evaluate("window.isSamePage")
    expect(page.locator("pre").last).to_be_visible()  # the user opened it


def test_a_list_waits_while_rows_are_selected(page: Page) -> None:
    job = open_job()
    page.goto(address_of(Job))
    row = page.locator("#result_list tr.data-row", has=page.get_by_text(str(job.pk), exact=True))
    box, state = row.locator("input.action-select"), row.locator(".cellrun-status")
    box.check()
    cancel(job)
    wait_for_polls(page, 5)
    expect(state).to_have_text("running")
    expect(box).to_be_checked()
    box.uncheck()
    wait_for_polls(page)
    expect(state).to_have_text("killed")
    box.check()  # the new rows have the same actions as the first
    expect(page.locator(".action-counter")).to_contain_text("1 of")


def test_a_hidden_page_polls_when_it_is_visible_again(page: Page) -> None:
    page.goto(address_of(Job))
    page.evaluate(
        "Object.defineProperty(document, 'visibilityState', {get: () => window.visibility})"
    )
    page.evaluate("window.visibility = 'hidden'")
    requested: list[str] = []
    page.on("request", lambda request: requested.append(urlsplit(request.url).path))
    wait_for_polls(page, 5)
    assert address_of(Job) not in requested  # the icon may be
    page.evaluate("window.visibility = 'visible'")
    with page.expect_response("**/job/"):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def test_times_are_relative_and_durations_grow(page: Page) -> None:
    job = open_job()
    begun = clock.now() - timedelta(minutes=3, seconds=5)
    Job.objects.filter(pk=job.pk).update(created_at=begun, started_at=begun)
    page.goto(address_of(Job, job))
    facts = page.locator("dl.cellrun-facts")
    created = facts.locator("div", has=page.get_by_text("created", exact=True)).locator("time")
    expect(created).to_have_text("3 min. ago")
    assert begun.strftime("%Y-%m-%d %H:%M:%S") in (created.get_attribute("title") or "")
    took = facts.locator("div", has=page.get_by_text("took", exact=True)).locator("dd")
    page.clock.run_for(1000)
    expect(took).to_contain_text("3 m ")
    page.clock.run_for(60_000)
    expect(took).to_contain_text("4 m ")
    expect(created).to_have_text("4 min. ago")


def test_an_alert_appears_in_the_header_of_an_open_page(page: Page) -> None:
    page.goto(address_of(Job))
    expect(page.locator("#open-alerts")).to_be_empty()
    now = clock.now()
    Alert.objects.create(kind="k", subject="s", text="t", raised_at=now, last_raised_at=now)
    wait_for_polls(page)
    expect(page.locator("#open-alerts")).to_have_text("1 open alert")


def test_a_page_of_an_ended_session_keeps_its_content(page: Page) -> None:
    page.goto(address_of(Job))
    page.context.clear_cookies()
    wait_for_polls(page)
    expect(page.locator("#live-state")).to_have_text("Signed out. Reload the page.")
    expect(page.locator("#result_list")).to_be_visible()


def test_a_page_without_a_connection_is_marked(page: Page) -> None:
    page.goto(address_of(Job))
    page.context.set_offline(True)
    wait_for_polls(page)
    expect(page.locator("#live-state")).to_have_text("No connection: this page is not up to date.")
    page.context.set_offline(False)
    wait_for_polls(page)
    expect(page.locator("#live-state")).to_be_hidden()
