"""The palette, the chips of states and the ways from the overview, in a real browser."""

import re
from collections.abc import Iterator

import pytest
from django.contrib.auth.models import Permission, User
from playwright.sync_api import Page, expect
from pytest_django.live_server_helper import LiveServer

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.states import CellState
from controlplane.models import Attempt, Cell, Job, Project, Task
from controlplane.storage.folder import append_log
from tests.harness.browser import signed_in_page
from tests.integration.admin.rows import WHY_PENDING, make_installation
from tests.integration.admin.test_job_tasks import job_of
from tests.integration.admin.test_pages import address_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.browser]


@pytest.fixture
def page(live_server: LiveServer) -> Iterator[Page]:
    make_installation()
    operator = User.objects.create_superuser("olga", password="x")
    with signed_in_page(live_server.url, operator) as (opened, complaints):
        yield opened
    assert complaints == []


def type_in_palette(page: Page, term: str) -> None:
    """Open the palette by its keys and type a term."""
    field = page.locator("#search-input-command")
    expect(field).to_be_hidden()  # the script that handles the keys has begun
    page.keyboard.press("Control+k")
    expect(field).to_be_focused()
    with page.expect_response("**/admin/search/**"):
        field.press_sequentially(term)


def choose(page: Page, title: str) -> None:
    """Go down to a result with the arrow key, and open it with Enter."""
    results = page.locator("#command-results-list > li")
    expect(results.filter(has_text=title)).not_to_have_count(0)
    texts = results.all_inner_texts()
    [place, *_] = [place for place, text in enumerate(texts) if title in text]
    for _ in range(place + 1):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")


def named_job(name: str) -> Job:
    job = job_of([S.FAILED, S.PENDING])
    Job.objects.filter(pk=job.pk).update(name=name)
    job.refresh_from_db()
    return job


def test_the_palette_finds_a_job_a_task_and_a_cell_by_keyboard(page: Page) -> None:
    job = named_job("train-sweep")
    second = Task.objects.get(job=job, index=1)
    for term, title, address in (
        ("train", f"train-sweep ({job.pk})", address_of(Job, job)),
        ("train-sweep/main.1", "train-sweep/main.1", address_of(Task, second)),
        ("ready", "cell-ready", address_of(Cell, Cell.objects.get(name="cell-ready"))),
        ("bulk", "Bulk operations", "/admin/controlplane/bulkoperation/"),
    ):
        page.goto("/admin/")
        type_in_palette(page, term)
        choose(page, title)
        page.wait_for_url(f"**{address}")


def test_the_palette_opens_from_the_sidebar(page: Page) -> None:
    page.goto("/admin/")
    page.get_by_role("button", name="Find jobs, cells").click()
    expect(page.locator("#search-input-command")).to_be_focused()


def test_the_palette_names_what_it_finds(page: Page) -> None:
    page.goto("/admin/")
    expect(page.get_by_text("apps and models")).to_have_count(0)
    button, field = page.locator("#open-palette"), page.locator("#search-input-command")
    for kind in ("jobs", "tasks", "attempts", "cells", "pools", "projects", "pages"):
        expect(button).to_have_attribute("title", re.compile(rf"\b{kind}\b"))
    expect(field).to_have_attribute("placeholder", button.get_attribute("title") or "")
    expect(field).to_have_attribute("aria-label", button.get_attribute("title") or "")
    width = "document.querySelector('#open-palette span.truncate').scrollWidth"
    assert page.evaluate(width) <= page.evaluate(width.replace("scroll", "client"))


def test_the_palette_finds_only_what_the_user_may_view(live_server: LiveServer) -> None:
    make_installation()
    named_job("train-ready")
    otto = User.objects.create_user("otto", is_staff=True)
    otto.user_permissions.set(Permission.objects.filter(codename="view_cell"))
    with signed_in_page(live_server.url, otto) as (page, complaints):
        page.goto("/admin/")
        type_in_palette(page, "ready")
        results = page.locator("#command-results-list > li")
        expect(results).to_have_count(1)
        expect(results).to_contain_text("cell-ready")
        otto.user_permissions.clear()  # the next search decides anew
        page.goto("/admin/")
        type_in_palette(page, "ready")
        expect(page.locator("#command-results-list > li")).to_have_count(0)
    assert complaints == []


@pytest.mark.parametrize(
    ("model", "state"), [(Job, S.FAILED), (Task, S.FAILED), (Attempt, S.FAILED)]
)
def test_a_chip_changes_the_address_and_the_list(
    page: Page, model: type[Job | Task | Attempt], state: S
) -> None:
    job_of([S.FAILED, S.SUCCEEDED])
    page.goto(address_of(model))
    rows = page.locator("#result_list tr.data-row")
    before = rows.count()
    page.locator(".cellrun-chips a", has_text=re.compile(f"^{state.name.lower()}$")).click()
    page.wait_for_url(f"**?state__exact={state:d}")
    expect(rows).to_have_count(model._default_manager.filter(state=state).count())
    page.go_back()
    expect(rows).to_have_count(before)


def test_a_chip_filters_cells(page: Page) -> None:
    page.goto(address_of(Cell))
    page.locator(".cellrun-chips a", has_text="quarantined").click()
    page.wait_for_url("**?state__exact=QUARANTINED")
    rows = page.locator("#result_list tr.data-row")
    expect(rows).to_have_count(Cell.objects.filter(state=CellState.QUARANTINED).count())
    expect(rows).to_contain_text("cell-quarantined")
    expect(page.locator(".cellrun-chips [aria-current]")).to_have_text("quarantined")


def test_two_clicks_lead_from_a_failing_job_to_its_failing_line(page: Page) -> None:
    job = named_job("train-sweep")
    failed = Task.objects.get(job=job, index=0)
    assert failed.attempt_uid is not None
    append_log(failed.attempt_uid, "stderr", offset=0, content=b"one\nValueError: no such shard\n")
    page.goto("/admin/")
    page.get_by_role("link", name=f"train-sweep ({job.pk})").first.click()
    page.locator("#failures").get_by_role("link", name="attempt 1").click()
    expect(page.locator("pre.cellrun-stderr")).to_contain_text("ValueError: no such shard")


def test_one_click_leads_from_a_waiting_job_to_the_missing_figure(page: Page) -> None:
    job = named_job("waiting-sweep")
    page.goto("/admin/")
    page.get_by_role("link", name=f"waiting-sweep ({job.pk})").first.click()
    expect(page.get_by_text(WHY_PENDING).first).to_be_visible()
    expect(page.locator("#live")).to_contain_text("lacks 1.5 of 2 cores")


def test_only_the_current_page_is_marked_in_the_sidebar(page: Page) -> None:
    marked = page.locator("#nav-sidebar a.active")
    for address, title in (
        ("/admin/controlplane/job/activity/", "Activity"),
        (address_of(Job), "Jobs"),
        (address_of(Job, Job.objects.get()), "Jobs"),
        ("/admin/controlplane/pool/queue/", "Queue"),
        (f"/admin/controlplane/pool/{Job.objects.get().pool_id}/queue/", "Queue"),
        (address_of(Project), "Projects"),
        ("/admin/", "Overview"),
    ):
        page.goto(address)
        expect(marked).to_have_count(1)
        expect(marked).to_contain_text(title)


def test_the_ellipsis_between_pages_is_no_link(page: Page) -> None:
    job_of([S.PENDING] * 600)
    page.goto(f"{address_of(Task)}?p=10")
    ellipses = page.get_by_text("…", exact=True)
    expect(ellipses).not_to_have_count(0)
    assert {it.evaluate("it => it.tagName") for it in ellipses.all()} == {"SPAN"}
    page.get_by_role("link", name="11", exact=True).click()
    page.wait_for_url("**p=11*")
