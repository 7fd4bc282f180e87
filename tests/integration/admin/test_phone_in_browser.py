"""The main pages fit the width of a phone: wide tables and charts scroll inside their frames."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page
from pytest_django.live_server_helper import LiveServer

from controlplane import clock
from controlplane.contract.states import TaskState
from controlplane.models import (
    Alert,
    Attempt,
    AuditLine,
    BulkOperation,
    Cell,
    CellSample,
    Job,
    NotificationAddress,
    NotificationMessage,
    NotificationRule,
    Pool,
    Quota,
    Task,
)
from tests.harness.browser import signed_in_page
from tests.harness.chromium import DESKTOP, PHONE, scroll_width
from tests.integration.admin.rows import make_installation
from tests.integration.admin.test_pages import address_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.browser]

# The elements that reach beyond the page, without those inside a frame that scrolls or cuts.
_WIDE = """
    () => Array.from(document.querySelectorAll("body *")).filter((element) => {
      if (element.getBoundingClientRect().right <= window.innerWidth + 1) return false;
      let outer = element.parentElement;
      while (getComputedStyle(outer).overflowX === "visible") {
        if (outer === document.body) return true;
        outer = outer.parentElement;
      }
      return false;
    }).slice(0, 3).map((element) => element.outerHTML.slice(0, 120))
    """


@pytest.fixture
def page(live_server: LiveServer) -> Iterator[Page]:
    make_installation()
    sample = {
        f"{name}_{part}": 1
        for name in ("cpu_millis", "memory_mib", "gpu")
        for part in ("used", "reserved", "capacity")
    }
    at = clock.now() - timedelta(minutes=5)
    CellSample.objects.create(cell=Cell.objects.get(name="cell-ready"), at=at, **sample)
    Job.objects.update(name="a-job-with-a-name-of-the-most-characters-that-a-name-may-have-1")
    operator = User.objects.create_superuser("olga", password="x")
    with signed_in_page(live_server.url, operator) as (opened, complaints):
        yield opened
    assert complaints == []


def addresses() -> dict[str, str]:
    """The main pages by name."""
    pool, cell = Pool.objects.earliest("pk"), Cell.objects.get(name="cell-ready")
    job = Job.objects.filter(groups__isnull=False).earliest("pk")
    found = {
        "overview": "/admin/",
        "queue": f"{address_of(Pool, pool).removesuffix('change/')}queue/",
        "activity": "/admin/controlplane/job/activity/",
        "job": address_of(Job, job),
        "task": address_of(Task, Task.objects.get(state=TaskState.FAILED)),
        "attempt": address_of(Attempt, Attempt.objects.get(state=TaskState.FAILED)),
        "cell": address_of(Cell, cell),
        "bulk": f"{address_of(BulkOperation)}add/?action=cancel&project=default/default",
        "bulk operation": address_of(BulkOperation, BulkOperation.objects.get()),
        "alert": address_of(Alert, Alert.objects.earliest("pk")),
        "rule": address_of(NotificationRule, NotificationRule.objects.get()),
        "form of a rule": f"{address_of(NotificationRule)}add/",
        "address": address_of(NotificationAddress, NotificationAddress.objects.get()),
        "message": address_of(NotificationMessage, NotificationMessage.objects.get()),
        "search": f"{address_of(Job)}?q=job",
    }
    lists = (Job, Task, Attempt, Cell, Quota, BulkOperation, Alert, AuditLine)
    lists += (NotificationRule, NotificationAddress, NotificationMessage)
    return found | {f"{model.__name__}s": address_of(model) for model in lists}


def test_main_pages_fit_a_phone(page: Page) -> None:
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    wide = {}
    for name, address in addresses().items():
        answer = page.goto(address)
        assert answer is not None
        assert answer.ok, address
        width = scroll_width(page)
        if width > PHONE["width"]:
            wide[name] = (width, page.evaluate(_WIDE))
    assert wide == {}


def test_pages_that_become_narrower_fit_a_phone(page: Page) -> None:
    """A window that the user makes narrower, or a device that turns."""
    wide = {}
    for name in ("overview", "job", "cell"):
        page.set_viewport_size(DESKTOP)  # type: ignore[arg-type]
        page.goto(addresses()[name])
        page.set_viewport_size(PHONE)  # type: ignore[arg-type]
        width = scroll_width(page)
        if width > PHONE["width"]:
            wide[name] = (width, page.evaluate(_WIDE))
    assert wide == {}


def test_the_palette_fits_a_phone(page: Page) -> None:
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    page.goto("/admin/")
    page.keyboard.press("Control+k")
    field = page.locator("#search-input-command")
    with page.expect_response("**/admin/search/**"):
        field.press_sequentially("a-job")
    page.locator("#command-results-list > li").first.wait_for()
    box = page.locator("#command-results-list").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= PHONE["width"]
    assert scroll_width(page) <= PHONE["width"]
