"""The usage page: figures of a month by project, user and job name, and the capacity of pools."""

import re
from datetime import date, timedelta
from html import unescape
from typing import Any

import pytest
from django.test import Client

from controlplane import clock
from controlplane.models import Pool, PoolSample, Project, UsageTotal
from tests.integration.admin.test_pages import words

pytestmark = pytest.mark.django_db

ADDRESS = "/admin/controlplane/job/usage/"
MAY = date(2031, 5, 1)


def total(job: str, owner: str = "ann", **figures: Any) -> UsageTotal:
    figures.setdefault("attempts", 1)
    figures.setdefault("cpu_seconds_measured", figures.get("cpu_seconds_requested", 0))
    figures.setdefault("month", MAY)
    project = figures.pop("project", None) or Project.objects.earliest("pk")
    return UsageTotal.objects.create(project=project, owner=owner, job_name=job, **figures)


@pytest.fixture
def totals(operator: Client) -> Client:
    """Ten core hours of train with one used, two of sweep with half an hour used."""
    total(
        "train", cpu_seconds_requested=36_000, cpu_seconds_used=3600, attempts=1200,
        memory_mib_seconds_requested=2048 * 3600, memory_mib_seconds_used=512 * 3600,
        memory_mib_seconds_measured=2048 * 3600, memory_peak_mib=300, gpu_seconds_requested=1800,
    )  # fmt: skip
    total(
        "sweep", "bob", cpu_seconds_requested=7200, cpu_seconds_used=1800, unmeasured_attempts=1
    )  # fmt: skip
    return operator


def page_of(browser: Client, query: str) -> str:
    answer = browser.get(f"{ADDRESS}?{query}")
    assert answer.status_code == 200
    return unescape(answer.content.decode())


def table(html: str, title: str) -> list[str]:
    part = html.partition(f"<h2>{title}</h2>")[2].partition("</section>")[0]
    body = part.partition("<tbody>")[2]
    return [words(row) for row in re.findall(r"<tr>.*?</tr>", body, re.DOTALL)]


def test_job_names_of_a_month_are_ranked_by_waste_in_hours(totals: Client) -> None:
    project = str(Project.objects.earliest("pk"))
    assert table(page_of(totals, "month=2031-05&by=job"), "Requested and used") == [
        f"train ann in {project} 10 core h 1 core h 9 core h"
        " 2 GiB h 0.5 GiB h 1.5 GiB h 300 MiB 0.5 GPU h 1,200 0",
        f"sweep bob in {project} 2 core h 0.5 core h 1.5 core h"
        " 0 GiB h 0 GiB h 0 GiB h 0 MiB 0 GPU h 1 1",
    ]


def test_projects_and_users_lead_to_their_job_names(totals: Client) -> None:
    html = page_of(totals, "month=2031-05&by=user")
    assert 'href="?month=2031-05&by=job&rank=cpu&user=bob"' in html
    html = page_of(totals, "month=2031-05&by=job&user=bob")
    [row] = table(html, "Requested and used")
    assert row.startswith("sweep")
    assert "Only user bob." in words(html)
    assert "/admin/controlplane/job/?q=sweep" in html
    project = Project.objects.earliest("pk")
    [row] = table(page_of(totals, "month=2031-05"), "Requested and used")
    assert row.startswith(f"{project} 12 core h 1.5 core h 10.5 core h")


def test_without_a_month_the_page_is_of_the_present_one(totals: Client) -> None:
    total("now", month=clock.now().date().replace(day=1))
    [row] = table(page_of(totals, "by=job"), "Requested and used")
    assert row.startswith("now")
    assert "no attempt was released in this month" in page_of(totals, "month=2030-01")


def test_months_with_totals_are_links_the_newest_first(totals: Client) -> None:
    total("old", month=date(2031, 3, 1))
    html = page_of(totals, "month=2031-05")
    group = html.partition('aria-label="Months"')[2].partition("</div>")[0]
    found = re.findall(r">(\d{4}-\d\d)</a>", group)
    assert [month for month in found if month.startswith("2031")] == ["2031-05", "2031-03"]
    by_month = table(page_of(totals, "month=2031-05&by=month"), "Requested and used")
    assert [row.split()[0] for row in by_month] == ["2031-05", "2031-03"]


@pytest.mark.parametrize(
    "query",
    ["month=2031-13", "month=may", "by=cell", "rank=disk", "project=no/such", "user=%00"],
)
def test_bad_address_is_a_page_that_does_not_exist(operator: Client, query: str) -> None:
    assert operator.get(f"{ADDRESS}?{query}").status_code == 404
    assert operator.get(f"{ADDRESS}file/?{query}").status_code == 404


def test_file_has_the_rows_of_the_page(totals: Client) -> None:
    html = page_of(totals, "month=2031-05&by=job&user=bob")
    [address] = re.findall(rf'href="({ADDRESS}file/[^"]*)"', html)
    answer = totals.get(address)
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert answer["Content-Disposition"] == 'attachment; filename="usage-2031-05.csv"'
    header, row = answer.content.decode().splitlines()
    assert header.startswith("project,user,job,attempts,")
    assert row.startswith(f"{Project.objects.earliest('pk')},bob,sweep,1,1,7200.0,1800.0,5400.0")


def test_user_name_is_a_text_and_not_markup(operator: Client) -> None:
    total("x", "<b>ann</b>")
    answer = operator.get(f"{ADDRESS}?month=2031-05&by=user")
    assert b"<b>ann</b>" not in answer.content
    assert b"&lt;b&gt;ann&lt;/b&gt;" in answer.content


def test_capacity_of_pools_is_that_of_their_last_samples(operator: Client) -> None:
    pool = Pool.objects.earliest("pk")

    def sample(age: int, used: int) -> None:
        PoolSample.objects.create(
            at=clock.now() - timedelta(seconds=age),
            pool=pool,
            waiting=[0, 0, 0],
            stuck=[0, 0, 0],
            held=[0, 0, 0],
            latencies=[],
            used={"cpu_millis": used},
            wanted={"cpu_millis": 9000},
            capacity={"cpu_millis": 8000},
        )

    sample(600, 1000)
    assert table(page_of(operator, ""), "Capacity of pools now") == []
    sample(10, 6000)
    [row] = table(page_of(operator, ""), "Capacity of pools now")
    assert row.startswith(f"{pool.name} 6 of 8")
    assert "9 cores" in row


def test_page_is_for_users_that_may_view_jobs(totals: Client, onlooker: Client) -> None:
    assert onlooker.get(ADDRESS).status_code == 200
    assert b"controlplane/job/usage/" in onlooker.get("/admin/").content
