"""The lines of the overview are drawn, also after a refresh and in the dark theme."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect
from pytest_django.live_server_helper import LiveServer

from controlplane import clock
from controlplane.domain.convergence.latencies import BOUNDS
from controlplane.models import Pool, PoolSample
from tests.harness.browser import signed_in_page
from tests.harness.chromium import PHONE, scroll_width
from tests.integration.admin.rows import make_installation
from tests.integration.admin.test_live_in_browser import cancel, open_job, wait_for_polls

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.browser]

PIXELS = """
    Array.from(document.querySelectorAll("canvas[data-values]"), (canvas) => {
      const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      let painted = 0;
      for (let at = 3; at < data.length; at += 4) painted += data[at] > 0;
      return painted;
    })
    """


@pytest.fixture
def page(live_server: LiveServer) -> Iterator[Page]:
    """Yield the overview, with timers that run only when a test advances its clock."""
    make_installation()
    for minute in range(1, 60):
        add_sample(minute)
    operator = User.objects.create_superuser("olga", password="x")
    with signed_in_page(live_server.url, operator) as (opened, complaints):
        opened.clock.install(time=clock.now())
        opened.goto("/admin/")
        yield opened
    assert complaints == []


def add_sample(minutes_ago: int, started: int = 5) -> None:
    latencies = [0] * (len(BOUNDS) + 1)
    latencies[minutes_ago % 8] = started
    PoolSample.objects.create(
        at=clock.now() - timedelta(minutes=minutes_ago),
        pool=Pool.objects.get(name="default"),
        waiting=[0, minutes_ago, 0],
        stuck=[0, 0, 0],
        held=[0, 3, 0],
        started=started,
        succeeded=started,
        latencies=latencies,
    )


def test_lines_are_drawn_again_after_a_refresh(page: Page) -> None:
    before = page.evaluate(PIXELS)
    assert len(before) == 3
    assert min(before) > 500
    table = page.locator("summary", has_text="Tasks per minute as a table")
    table.click()
    PoolSample.objects.all().delete()
    add_sample(5, started=123)
    page.evaluate("window.isSamePage = true")
    cancel(open_job())
    wait_for_polls(page)
    expect(page.locator("figcaption").first).to_contain_text("123 started")
    assert page.evaluate("window.isSamePage")
    after = page.evaluate(PIXELS)
    assert len(after) == 3
    assert min(after) > 0
    assert after != before
    expect(page.locator("figure details").first.locator("tbody tr")).to_have_count(1)
    expect(page.locator("figure details").first.locator("tbody")).to_be_visible()


# How many pixels each line has of its own colour.
COLOURED = """
    Array.from(document.querySelectorAll("canvas[data-values]"), (canvas) => {
      const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      return Chart.getChart(canvas).data.datasets.map(({borderColor}) => {
        const [, red, green, blue] = /srgb (\\S+) (\\S+) ([^ )]+)/.exec(borderColor)
          || /rgb\\((\\d+), (\\d+), (\\d+)/.exec(borderColor);
        const scale = borderColor.includes("srgb") ? 255 : 1;
        const wanted = [red, green, blue].map((part) => Math.round(part * scale));
        let painted = 0;
        for (let at = 0; at < data.length; at += 4) {
          painted += data[at + 3] === 255
            && wanted.every((part, place) => Math.abs(data[at + place] - part) < 3);
        }
        return painted;
      });
    })
    """


def test_a_single_sample_is_drawn_as_a_point(page: Page) -> None:
    PoolSample.objects.all().delete()
    add_sample(5, started=7)
    page.goto("/admin/")
    tasks, latency, work = page.evaluate(COLOURED)
    assert (len(tasks), len(latency), len(work)) == (3, 2, 2)
    # Points of equal values cover each other.
    assert max(tasks) > 5
    assert max(latency) > 5
    assert min(work) > 5
    for caption in page.locator("#hour figcaption").all():
        expect(caption).to_contain_text("There are samples for only 1 of 60 minutes.")


def test_lines_have_other_colours_in_the_dark_theme(page: Page) -> None:
    colours = """
        new Set(Array.from(document.querySelectorAll("canvas[data-values]"),
            (canvas) => Chart.getChart(canvas).data.datasets[0].borderColor)).size
        + ":" + Chart.getChart(document.querySelector("canvas")).data.datasets[0].borderColor
        """
    light = page.evaluate(colours)
    page.emulate_media(color_scheme="dark")
    page.evaluate("document.documentElement.classList.add('dark')")
    page.wait_for_function(f"({colours.strip()}) !== {light!r}")


def test_the_overview_fits_a_phone(page: Page) -> None:
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    width = scroll_width(page)
    assert width == PHONE["width"]
    for chart in page.locator("canvas[data-values]").all():
        box = chart.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= PHONE["width"]
