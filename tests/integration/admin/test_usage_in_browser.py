"""The usage page in a real browser: months, groupings and the file, on a desktop and a phone."""

from datetime import date, timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect
from pytest_django.live_server_helper import LiveServer

from controlplane import clock
from controlplane.models import Domain, Pool, PoolSample, Project, UsageTotal
from tests.harness.browser import signed_in_page
from tests.harness.chromium import DESKTOP, PHONE, scroll_width
from tests.integration.admin.rows import make_installation

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.browser]


def make_totals() -> None:
    lab = Project.objects.create(domain=Domain.objects.earliest("pk"), name="laboratory-of-vision")
    month = clock.now().date().replace(day=1)
    before = (month - timedelta(days=1)).replace(day=1)
    for place, (name, owner) in enumerate(
        [("train-resnet-imagenet-large", "ann"), ("sweep", "bob"), ("eval", "ann"), ("", "bob")]
    ):
        requested = 3_600_000.0 / (place + 1)
        make_total(month, lab, owner, name, requested, requested * (0.1 + 0.2 * place))
    make_total(before, lab, "ann", "older", 7200.0, 7000.0)
    PoolSample.objects.create(
        at=clock.now(), pool=Pool.objects.earliest("pk"), waiting=[0, 0, 0], stuck=[0, 0, 0],
        held=[0, 0, 0], latencies=[], used={"cpu_millis": 48_000, "memory_mib": 100_000},
        wanted={"cpu_millis": 90_000}, capacity={"cpu_millis": 64_000, "memory_mib": 262_144},
    )  # fmt: skip


def make_total(
    month: date, project: Project, owner: str, name: str, requested: float, used: float
) -> None:
    UsageTotal.objects.create(
        month=month, project=project, owner=owner, job_name=name, attempts=1234,
        cpu_seconds_requested=requested, cpu_seconds_measured=requested, cpu_seconds_used=used,
        memory_mib_seconds_requested=requested * 4096, memory_mib_seconds_measured=requested * 4096,
        memory_mib_seconds_used=used * 2048, memory_peak_mib=2048, gpu_seconds_requested=requested,
    )  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_waste_is_ranked_by_month_and_grouping_and_can_be_downloaded(
    live_server: LiveServer, viewport: dict[str, int], scheme: str
) -> None:
    make_installation()
    make_totals()
    operator = User.objects.create_superuser("olga", password="x")
    with signed_in_page(live_server.url, operator, viewport=viewport) as (page, complaints):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.goto("/admin/controlplane/job/usage/")
        rows = page.locator(".cellrun-figures tbody tr")
        expect(rows).to_have_count(1)
        page.get_by_role("link", name="by job").click()
        expect(rows).to_have_count(4)
        expect(rows.first).to_contain_text("train-resnet-imagenet-large")
        expect(rows.first).to_contain_text("1,000 core h")
        expect(rows.first).to_contain_text("900 core h")
        # The used part of the first bar is a tenth of its request, which has the whole width.
        requested, used = page.locator(".cellrun-request").first.locator("span").all()
        whole, part = requested.bounding_box(), used.bounding_box()
        assert whole is not None
        assert part is not None
        assert part["width"] == pytest.approx(whole["width"] / 10, abs=2)
        for address in ("?by=job", "?by=project", "?by=user", "?by=month"):
            page.goto(f"/admin/controlplane/job/usage/{address}")
            assert scroll_width(page) == viewport["width"]
        page.goto("/admin/controlplane/job/usage/?by=job")
        with page.expect_download() as download:
            page.get_by_role("link", name="Download CSV").click()
        content = Path(download.value.path()).read_text()
        assert content.splitlines()[1].split(",")[2] == "train-resnet-imagenet-large"
        page.get_by_role("group", name="Months").get_by_role("link").last.click()
        expect(rows).to_have_count(1)
        expect(rows.first).to_contain_text("older")
    assert complaints == []
