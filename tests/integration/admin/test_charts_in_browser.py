"""The grid of a job's tasks in a real browser: squares lead to tasks, also by keyboard."""

from collections.abc import Iterator

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect
from pytest_django.live_server_helper import LiveServer

from controlplane import clock
from controlplane.admin.live import POLL_SECONDS
from controlplane.contract.states import TaskState as S
from controlplane.models import Job, Task, Transition
from tests.harness.browser import signed_in_page
from tests.harness.chromium import PHONE, scroll_width
from tests.integration.admin.rows import make_installation
from tests.integration.admin.test_job_tasks import job_of
from tests.integration.admin.test_pages import address_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.browser]

# The width of a square of a job of few tasks, with its gap.
PITCH = 20


@pytest.fixture
def page(live_server: LiveServer) -> Iterator[Page]:
    make_installation()
    operator = User.objects.create_superuser("olga", password="x")
    with signed_in_page(live_server.url, operator) as (opened, complaints):
        yield opened
    assert complaints == []


def colour_at(page: Page, place: int) -> list[int]:
    """The colour of a square near its edge, where no cross is."""
    found: list[int] = page.evaluate(
        """place => {
            const canvas = document.querySelector("[data-task-grid] canvas");
            const scale = window.devicePixelRatio;
            const [x, y] = [place * 20 + 9, 2];
            return [...canvas.getContext("2d").getImageData(x * scale, y * scale, 1, 1).data];
        }""",
        place,
    )
    return found


def test_ten_thousand_tasks_fit_a_telephone(live_server: LiveServer) -> None:
    make_installation()
    job = job_of([S.PENDING])
    group, now = job.groups.get(), clock.now()
    Task.objects.bulk_create(
        Task(job=job, group=group, shape_id=group.shape_id, index=index, updated_at=now)
        for index in range(1, 10_000)
    )
    group.counts[S.PENDING] = 10_000
    group.save()
    operator = User.objects.create_superuser("olga", password="x")
    with signed_in_page(live_server.url, operator, viewport=PHONE) as (page, complaints):
        page.goto(address_of(Job, job))
        canvas = page.locator("[data-task-grid] canvas")
        expect(canvas).to_be_visible()
        box = canvas.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= PHONE["width"]
        assert box["height"] < 1000
        assert scroll_width(page) == PHONE["width"]
    assert complaints == []


def test_a_square_shows_its_task_and_leads_to_it(page: Page) -> None:
    job = job_of([S.SUCCEEDED, S.RUNNING, S.FAILED, S.PENDING])
    page.goto(address_of(Job, job))
    grid = page.locator("[data-task-grid]")
    canvas, note = grid.locator("canvas"), grid.get_by_role("status")
    place = {"x": 2 * PITCH + 5, "y": 5}
    canvas.hover(position=place)
    expect(note).to_have_text("main.2: failed")
    expect(canvas).to_have_attribute(
        "aria-label",
        "main: 1 pending, 1 running, 1 succeeded, 1 failed. Arrow keys select a task, Enter opens"
        " it.",
    )
    assert colour_at(page, 2)[:3] == [0xCF, 0x22, 0x2E]
    canvas.click(position=place)
    task = Task.objects.get(job=job, index=2)
    page.wait_for_url(f"**{address_of(Task, task)}")


def test_the_keyboard_selects_a_square_also_after_a_refresh(page: Page) -> None:
    job = job_of([S.SUCCEEDED, S.RUNNING, S.RUNNING, S.PENDING])
    page.clock.install(time=clock.now())
    page.goto(address_of(Job, job))
    note = page.locator("[data-task-grid]").get_by_role("status")
    page.locator("[data-task-grid] canvas").focus()
    expect(note).to_have_text("main.0: succeeded")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(note).to_have_text("main.2: running")
    task = Task.objects.get(job=job, index=2)
    Task.objects.filter(pk=task.pk).update(state=S.FAILED, finished_at=clock.now())
    Transition.objects.create(
        job_id=job.pk, task_id=task.pk, to_state=S.FAILED, reason="exit_status", at=clock.now()
    )
    page.clock.run_for(1000 * POLL_SECONDS * 2)
    expect(note).to_have_text("main.2: failed")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{address_of(Task, task)}")
