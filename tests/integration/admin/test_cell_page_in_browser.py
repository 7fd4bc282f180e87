"""An open page of a draining cell shows its progress, and draws its resources."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect
from pytest_django.live_server_helper import LiveServer

from controlplane import clock
from controlplane.contract.states import TaskState
from controlplane.models import Alert, Attempt, Cell, CellSample, Transition
from tests.harness.browser import signed_in_page
from tests.harness.chromium import PHONE, scroll_width
from tests.integration.admin.rows import make_installation
from tests.integration.admin.test_live_in_browser import wait_for_polls
from tests.integration.admin.test_overview_in_browser import PIXELS
from tests.integration.admin.test_pages import address_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.browser]


@pytest.fixture
def page(live_server: LiveServer) -> Iterator[Page]:
    """Yield the page of a cell that drains, with timers that run only when a test advances them."""
    make_installation()
    Alert.objects.all().delete()
    now = clock.now()
    Attempt.objects.update(created_at=now, started_at=now)
    cell = Cell.objects.get(name="cell-ready")
    Cell.objects.filter(pk=cell.pk).update(
        state="DRAINING",
        ordered_state="DRAINING",
        draining_since=now,
        drain_deadline_at=now + timedelta(hours=2, seconds=30),
    )
    for minute in range(1, 60):
        CellSample.objects.create(
            cell=cell,
            at=now.replace(second=0, microsecond=0) - timedelta(minutes=minute),
            cpu_millis_used=1000 + 10 * minute,
            cpu_millis_reserved=5 * minute,
            cpu_millis_capacity=2000,
            memory_mib_used=512,
            memory_mib_reserved=8 * minute,
            memory_mib_capacity=2048,
            gpu_used=0,
            gpu_reserved=0,
            gpu_capacity=0,
        )
    operator = User.objects.create_superuser("olga", password="x")
    with signed_in_page(live_server.url, operator) as (opened, complaints):
        opened.clock.install(time=now)
        opened.goto(address_of(Cell, cell))
        yield opened
    assert complaints == []


def end_attempt() -> None:
    """End an attempt on the cell as a report of the cell does."""
    attempt = Attempt.objects.filter(released_at=None, cell__name="cell-ready")[0]
    now = clock.now()
    Attempt.objects.filter(pk=attempt.pk).update(
        state=TaskState.SUCCEEDED, finished_at=now, released_at=now
    )
    Transition.objects.create(
        job_id=attempt.job_id,
        task_id=attempt.task_id,
        attempt_uid=attempt.pk,
        from_state=attempt.state,
        to_state=TaskState.SUCCEEDED,
        attempt_state=TaskState.SUCCEEDED,
        reason="succeeded",
        at=now,
    )


def test_the_progress_of_a_drain_goes_down_while_the_page_is_open(page: Page) -> None:
    page.evaluate("window.isSamePage = true")
    total = Attempt.objects.filter(released_at=None, cell__name="cell-ready").count()
    assert total > 1
    drain = page.locator("#drain")
    expect(drain).to_contain_text(f"{total} of {total} attempts left, the longest until")
    expect(drain.locator("time")).to_have_text("in 2 hr.")
    for ended in range(1, total + 1):
        end_attempt()
        wait_for_polls(page)
        if ended < total:
            expect(drain).to_contain_text(f"{total - ended} of {total} attempts left")
        else:
            expect(drain).to_contain_text(f"All {total} attempts have ended, the last")
        progress = drain.locator("progress")
        assert progress.evaluate("element => element.value / element.max") == ended / total
    expect(page.locator("#attempts")).to_contain_text("none")
    assert page.evaluate("window.isSamePage")


def test_resources_are_drawn_again_after_a_refresh(page: Page) -> None:
    before = page.evaluate(PIXELS)
    assert len(before) == 2
    assert min(before) > 500
    end_attempt()
    wait_for_polls(page)
    after = page.evaluate(PIXELS)
    assert len(after) == 2
    assert min(after) > 500
    page.locator("#capacity").get_by_text("last day").click()
    expect(page.locator("#capacity [aria-current]")).to_have_text("last day")


def test_the_page_of_a_cell_fits_a_phone(page: Page) -> None:
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    assert scroll_width(page) == PHONE["width"]
